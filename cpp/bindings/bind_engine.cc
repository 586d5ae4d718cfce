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
#include "bindings/engine_class.h"
#include "bindings/errors.h"
#include "bindings/py_logits_processor.h"
#include "bindings/timeout.h"
#include "core/request/validate.h"
#include "fastllm/engine.h"

namespace py = pybind11;

namespace fastllm::bindings {
namespace {

EngineHolder CreateEngine(const EngineConfig& config, const TokenTable* tokens, const py::list& logits_processors) {
  std::optional<TokenTable> table;
  if (tokens != nullptr) table = *tokens;
  std::vector<std::shared_ptr<LogitsProcessor>> processors;
  processors.reserve(logits_processors.size());
  for (py::handle object : logits_processors) {
    processors.push_back(std::make_shared<PyLogitsProcessor>(py::reinterpret_borrow<py::object>(object)));
  }
  py::gil_scoped_release release;
  return EngineHolder(ValueOrThrow(Engine::Create(config, std::move(table), std::move(processors))).release());
}

// As Submit() does; in place, so that the caller sees the prompt that is used.
void Truncate(const Engine& engine, GenerationRequest* request) {
  TruncatePrompt(request->sampling, engine.info().max_model_len, &request->prompt_token_ids);
}

uint64_t SubmitRequest(Engine& engine, GenerationRequest& request) {
  Truncate(engine, &request);
  py::gil_scoped_release release;
  return ValueOrThrow(engine.Submit(request));
}

// Submits in order, from the first request on that has no handle in `handles`, a list of the caller, and appends the
// handles: an exception that Python raises right after this call (Ctrl-C) finds them all there. An error names the
// index of its request.
void SubmitAll(Engine& engine, const std::vector<GenerationRequest*>& requests, py::list handles) {
  const size_t first = handles.size();
  for (size_t i = first; i < requests.size(); ++i) Truncate(engine, requests[i]);
  std::vector<uint64_t> done;
  done.reserve(requests.size());
  Status error;
  {
    py::gil_scoped_release release;
    for (size_t i = first; i < requests.size(); ++i) {
      Result<uint64_t> handle = engine.Submit(*requests[i]);
      if (!handle.ok()) {
        const Status status = handle.status();
        error = Status(status.code(), "prompt " + std::to_string(i) + ": " + status.message())
                    .WithRetryAfter(status.retry_after_ms());
        break;
      }
      done.push_back(*handle);
    }
  }
  for (uint64_t handle : done) handles.append(handle);
  ThrowIfError(std::move(error));
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
      .def_property_readonly("default_sampling_params", [](const EngineInfo& i) { return i.default_sampling_params; })
      .def_readonly("default_sampling_fields", &EngineInfo::default_sampling_fields,
                    "Fields of default_sampling_params that the model states.")
      .def_readonly("max_logprobs", &EngineInfo::max_logprobs)
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
      .def_readonly("waiting_preempted", &EngineStats::waiting_preempted)
      .def_readonly("queued_tokens", &EngineStats::queued_tokens)
      .def_readonly("used_blocks", &EngineStats::used_blocks)
      .def_readonly("total_blocks", &EngineStats::total_blocks)
      .def_readonly("preemptions", &EngineStats::preemptions)
      .def_readonly("prefix_query_tokens", &EngineStats::prefix_query_tokens)
      .def_readonly("prefix_hit_tokens", &EngineStats::prefix_hit_tokens)
      .def_readonly("scheduled_tokens", &EngineStats::scheduled_tokens)
      .def_readonly("prompt_tokens", &EngineStats::prompt_tokens)
      .def_readonly("generation_tokens", &EngineStats::generation_tokens)
      .def_readonly("finished_requests", &EngineStats::finished_requests)
      .def_readonly("finished_stop", &EngineStats::finished_stop)
      .def_readonly("finished_length", &EngineStats::finished_length)
      .def_readonly("finished_abort", &EngineStats::finished_abort)
      .def_readonly("finished_error", &EngineStats::finished_error)
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

void BindLifecycle(EngineClass* engine) {
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
          "drain_and_shutdown", [](Engine& e, double timeout_s) { return e.DrainAndShutdown(TimeoutOf(timeout_s)); },
          py::arg("timeout"), no_gil, "True when all requests came to their own end in `timeout` seconds.");
}

}  // namespace

void BindEngine(py::module_& m) {
  BindInfo(m);
  BindStats(m);
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  auto engine =
      EngineClass(m, "Engine", "The engine: one model, its scheduler and its threads. Thread-safe.")
          .def_static("create", &CreateEngine, py::arg("config"), py::arg("tokens") = static_cast<TokenTable*>(nullptr),
                      py::arg("logits_processors") = py::list(),
                      "Loads the model and starts the engine thread. logits_processors: objects as "
                      "fastllm_core.logits_processor.LogitsProcessor.")
          .def(
              "validate",
              [](const Engine& e, GenerationRequest& request) {
                Truncate(e, &request);
                ThrowIfError(e.Validate(request));
              },
              py::arg("request"), "Raises what submit() would find wrong; truncates the prompt as asked.")
          .def("submit", &SubmitRequest, py::arg("request"), "Queues a request and returns its handle, never 0.")
          .def("submit_all", &SubmitAll, py::arg("requests"), py::arg("handles"),
               "Queues the requests that have no handle in the list yet, in order, and appends their handles.")
          .def("abort", &Engine::Abort, py::arg("request_id"), no_gil, "Ends a request; its last delta says 'abort'.")
          .def("drain", &DrainDeltas, py::arg("timeout_ms") = 0, "All pending deltas, waiting for the first.")
          .def_property_readonly("event_fd", &Engine::event_fd,
                                 "Readable while deltas are pending and when the engine has ended; drain() resets it.")
          .def_property_readonly("info", &Engine::info, py::return_value_policy::reference_internal)
          .def("stats", &Engine::stats, no_gil)
          .def(
              "check_health", [](const Engine& e) { ThrowIfError(e.health()); }, no_gil,
              "Raises what is wrong when the engine does not serve.")
          .def("shutdown", &Engine::Shutdown, no_gil,
               "Aborts everything, delivers the last deltas, joins the threads.");
  BindLifecycle(&engine);
  BindPrefixCache(m, &engine);
  BindReplicas(m, &engine);
}

}  // namespace fastllm::bindings
