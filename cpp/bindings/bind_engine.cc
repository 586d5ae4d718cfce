// Engine. The GIL is released in every call that can wait, in construction and in destruction.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/errors.h"
#include "bindings/field_value.h"
#include "core/request/validate.h"
#include "fastllm/engine.h"

namespace py = pybind11;

namespace fastllm::bindings {
namespace {

// The engine joins its threads when it goes; they must not wait for us meanwhile.
struct DeleteWithoutGil {
  void operator()(Engine* engine) const {
    py::gil_scoped_release release;
    delete engine;
  }
};
using EngineHolder = std::unique_ptr<Engine, DeleteWithoutGil>;

EngineHolder CreateEngine(const EngineConfig& config, const TokenTable* tokens) {
  std::optional<TokenTable> table;
  if (tokens != nullptr) table = *tokens;
  py::gil_scoped_release release;
  return EngineHolder(ValueOrThrow(Engine::Create(config, std::move(table))).release());
}

// The ids of any sequence of integers; errors name the place and the value, never dump the list.
std::vector<int32_t> TokenIds(py::handle object) {
  if (PyUnicode_Check(object.ptr()) || PyBytes_Check(object.ptr()) || !PySequence_Check(object.ptr())) {
    throw py::type_error("prompt_token_ids must be a list of int, got " + std::string(Py_TYPE(object.ptr())->tp_name));
  }
  // A copy: an element's __index__ may change the list while it is read.
  const auto items = py::reinterpret_steal<py::object>(PySequence_Tuple(object.ptr()));
  if (!items) throw py::error_already_set();
  const Py_ssize_t size = PyTuple_GET_SIZE(items.ptr());
  std::vector<int32_t> ids(static_cast<size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i) {
    py::handle item(PyTuple_GET_ITEM(items.ptr(), i));
    const auto where = [i] { return "prompt_token_ids[" + std::to_string(i) + "]"; };
    if (!PyIndex_Check(item.ptr()) || PyBool_Check(item.ptr())) {
      throw py::type_error(where() + " must be an int, got " + py::repr(item).cast<std::string>());
    }
    auto index = py::reinterpret_steal<py::object>(PyNumber_Index(item.ptr()));
    if (!index) throw py::error_already_set();
    int overflow = 0;
    const long value = PyLong_AsLongAndOverflow(index.ptr(), &overflow);
    if (overflow != 0 || value < INT32_MIN || value > INT32_MAX) {
      throw StatusError(Status::InvalidArgument(where() + " = " + py::repr(index).cast<std::string>() +
                                                " is no token id: it does not fit in 32 bits"));
    }
    ids[static_cast<size_t>(i)] = static_cast<int32_t>(value);
  }
  return ids;
}

uint64_t SubmitRequest(Engine& engine, const GenerationRequest& request) {
  py::gil_scoped_release release;
  return ValueOrThrow(engine.Submit(request));
}

// Submits in order and appends each handle to `handles`, a list of the caller: an exception that Python raises right
// after this call (Ctrl-C) finds them all there. An error names the index of its request.
void SubmitAll(Engine& engine, const std::vector<const GenerationRequest*>& requests, py::list handles) {
  std::vector<uint64_t> done;
  done.reserve(requests.size());
  Status error;
  {
    py::gil_scoped_release release;
    for (const GenerationRequest* request : requests) {
      Result<uint64_t> handle = engine.Submit(*request);
      if (!handle.ok()) {
        error =
            Status(handle.status().code(), "prompt " + std::to_string(done.size()) + ": " + handle.status().message());
        break;
      }
      done.push_back(*handle);
    }
  }
  for (uint64_t handle : done) handles.append(handle);
  ThrowIfError(std::move(error));
}

// The checks of Submit() that need no engine state, so that a batch can be refused before any of it runs. Whether
// text can be made is left to Submit().
void ValidateForEngine(const Engine& engine, const GenerationRequest& request) {
  const EngineInfo& info = engine.info();
  RequestLimits limits;
  limits.vocab_size = info.vocab_size;
  limits.max_model_len = info.max_model_len;
  const int64_t capacity = (static_cast<int64_t>(info.num_kv_blocks) - 1) * info.block_size;
  limits.kv_capacity_tokens = static_cast<int32_t>(std::min<int64_t>(capacity, INT32_MAX));
  limits.has_tokens = true;
  ThrowIfError(ValidateRequest(request.prompt_token_ids, request.sampling, limits).status());
}

std::vector<RequestDelta> DrainDeltas(Engine& engine, int64_t timeout_ms) {
  if (timeout_ms < 0)
    throw StatusError(Status::InvalidArgument("timeout_ms must be at least 0, got " + std::to_string(timeout_ms)));
  py::gil_scoped_release release;
  return engine.Drain(std::chrono::milliseconds(timeout_ms));
}

PauseMode PauseModeOf(const std::string& mode) {
  if (mode == "abort") return PauseMode::kAbort;
  if (mode == "wait") return PauseMode::kWait;
  if (mode == "keep") return PauseMode::kKeep;
  throw StatusError(Status::InvalidArgument("mode must be 'abort', 'wait' or 'keep', got '" + mode + "'"));
}

void BindInfo(py::module_& m) {
  py::class_<ResolvedValue>(m, "ResolvedValue", "One derived value of the configuration, and why.")
      .def_readonly("name", &ResolvedValue::name)
      .def_readonly("value", &ResolvedValue::value)
      .def_readonly("reason", &ResolvedValue::reason)
      .def("__repr__", [](const ResolvedValue& v) { return v.name + " = " + v.value + " (" + v.reason + ")"; });
  py::class_<EngineInfo>(m, "EngineInfo", "Facts of a loaded engine.")
      .def_readonly("architecture", &EngineInfo::architecture)
      .def_readonly("vocab_size", &EngineInfo::vocab_size)
      .def_readonly("max_model_len", &EngineInfo::max_model_len)
      .def_readonly("num_kv_blocks", &EngineInfo::num_kv_blocks)
      .def_readonly("block_size", &EngineInfo::block_size)
      .def_readonly("eos_token_ids", &EngineInfo::eos_token_ids)
      .def_readonly("resolved", &EngineInfo::resolved)
      .def_readonly("startup_seconds", &EngineInfo::startup_seconds);
}

void BindStats(py::module_& m) {
  py::class_<EngineStats>(m, "EngineStats",
                          "A snapshot of the engine, written once per step. Times are nanoseconds; counts of work and "
                          "times go up from the engine's start.")
      .def_readonly("steps", &EngineStats::steps)
      .def_readonly("running", &EngineStats::running)
      .def_readonly("waiting", &EngineStats::waiting)
      .def_readonly("waiting_paused", &EngineStats::waiting_paused)
      .def_readonly("queued_tokens", &EngineStats::queued_tokens)
      .def_readonly("used_blocks", &EngineStats::used_blocks)
      .def_readonly("total_blocks", &EngineStats::total_blocks)
      .def_readonly("preemptions", &EngineStats::preemptions)
      .def_readonly("prefix_query_tokens", &EngineStats::prefix_query_tokens)
      .def_readonly("prefix_hit_tokens", &EngineStats::prefix_hit_tokens)
      .def_readonly("scheduled_tokens", &EngineStats::scheduled_tokens)
      .def_readonly("finished_requests", &EngineStats::finished_requests)
      .def_readonly("schedule_ns", &EngineStats::schedule_ns)
      .def_readonly("execute_ns", &EngineStats::execute_ns)
      .def_readonly("wait_ns", &EngineStats::wait_ns)
      .def_readonly("update_ns", &EngineStats::update_ns)
      .def_readonly("last_step_requests", &EngineStats::last_step_requests)
      .def_readonly("last_step_tokens", &EngineStats::last_step_tokens)
      .def_readonly("last_schedule_ns", &EngineStats::last_schedule_ns)
      .def_readonly("last_execute_ns", &EngineStats::last_execute_ns)
      .def_readonly("last_update_ns", &EngineStats::last_update_ns)
      .def_readonly("heartbeat", &EngineStats::heartbeat)
      .def_property_readonly("paused", [](const EngineStats& s) { return s.paused != 0; })
      .def_property_readonly("asleep", [](const EngineStats& s) { return s.asleep != 0; })
      .def_property_readonly("kv_cache_usage", &EngineStats::kv_cache_usage, "used_blocks / total_blocks.");
}

void BindRequest(py::module_& m) {
  py::class_<GenerationRequest>(m, "GenerationRequest", "One prompt to continue, and how.")
      .def(py::init([](py::handle ids, const SamplingParams& sampling, const py::str& salt) {
             return GenerationRequest{TokenIds(ids), sampling, Utf8Text("cache_salt", salt)};
           }),
           py::arg("prompt_token_ids"), py::arg("sampling_params"), py::arg("cache_salt") = "")
      .def(
          "without_text",
          [](GenerationRequest request) {
            request.sampling.detokenize = false;
            request.sampling.stop.clear();
            return request;
          },
          "The same without text and stop strings, for text that Python makes.")
      .def_readonly("prompt_token_ids", &GenerationRequest::prompt_token_ids)
      .def_readonly("sampling_params", &GenerationRequest::sampling)
      .def_readonly("cache_salt", &GenerationRequest::cache_salt);
}

template <typename Class>
void BindLifecycle(Class* engine) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  (*engine)
      .def(
          "pause", [](Engine& e, const std::string& mode) { ThrowIfError(e.Pause(PauseModeOf(mode))); },
          py::arg("mode"), no_gil, "'abort', 'wait' or 'keep'; returns when the engine is quiet.")
      .def(
          "resume", [](Engine& e) { ThrowIfError(e.Resume()); }, no_gil)
      .def(
          "sleep", [](Engine& e, int32_t level) { ThrowIfError(e.Sleep(level)); }, py::arg("level"), no_gil,
          "Frees device memory of a paused engine.")
      .def(
          "wake", [](Engine& e, const std::vector<std::string>& tags) { ThrowIfError(e.Wake(tags)); }, py::arg("tags"),
          no_gil, "Brings back 'weights', 'kv_cache', or everything for an empty list.")
      .def(
          "reset_prefix_cache", [](Engine& e) { ThrowIfError(e.ResetPrefixCache()); }, no_gil)
      .def(
          "drain_and_shutdown",
          [](Engine& e, double timeout_s) {
            if (!(timeout_s >= 0)) {
              throw StatusError(
                  Status::InvalidArgument("timeout must be at least 0, got " + std::to_string(timeout_s)));
            }
            // A year is for ever, and fits in a clock.
            const double seconds = std::min(timeout_s, 365.0 * 86400);
            return e.DrainAndShutdown(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
          },
          py::arg("timeout"), no_gil, "True when all requests came to their own end in `timeout` seconds.");
}

}  // namespace

void BindEngine(py::module_& m) {
  BindInfo(m);
  BindStats(m);
  BindRequest(m);
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  auto engine =
      py::class_<Engine, EngineHolder>(m, "Engine",
                                       "The engine: one model, its scheduler and its threads. Thread-safe.")
          .def_static("create", &CreateEngine, py::arg("config"), py::arg("tokens") = static_cast<TokenTable*>(nullptr),
                      "Loads the model and starts the engine thread.")
          .def("validate", &ValidateForEngine, py::arg("request"),
               "Raises what submit() would find wrong with the values.")
          .def("submit", &SubmitRequest, py::arg("request"), "Queues a request and returns its handle, never 0.")
          .def("submit_all", &SubmitAll, py::arg("requests"), py::arg("handles"),
               "Queues requests in order and appends their handles to a list.")
          .def("abort", &Engine::Abort, py::arg("request_id"), no_gil, "Ends a request; its last delta says 'abort'.")
          .def("drain", &DrainDeltas, py::arg("timeout_ms") = 0, "All pending deltas, waiting for the first.")
          .def_property_readonly("event_fd", &Engine::event_fd, "Readable while deltas are pending; drain() resets it.")
          .def_property_readonly("info", &Engine::info, py::return_value_policy::reference_internal)
          .def("stats", &Engine::stats, no_gil)
          .def(
              "check_health", [](const Engine& e) { ThrowIfError(e.health()); }, no_gil,
              "Raises what is wrong when the engine does not serve.")
          .def("shutdown", &Engine::Shutdown, no_gil,
               "Aborts everything, delivers the last deltas, joins the threads.");
  BindLifecycle(&engine);
}

}  // namespace fastllm::bindings
