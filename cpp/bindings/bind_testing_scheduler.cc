// Scheduler and what it is built from, for pytest.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/errors.h"
#include "core/config/resolved.h"
#include "core/request/request.h"
#include "core/sched/scheduler.h"

namespace py = pybind11;

namespace fastllm::bindings {
namespace {

void BindConfigs(py::module_& m) {
  py::enum_<KvGroupKind>(m, "KvGroupKind")
      .value("FULL", KvGroupKind::kFull)
      .value("SLIDING_WINDOW", KvGroupKind::kSlidingWindow);
  py::class_<KvGroupSpec>(m, "KvGroupSpec")
      .def(py::init([](KvGroupKind kind, int32_t window) {
             KvGroupSpec spec;
             spec.kind = kind;
             spec.window = window;
             return spec;
           }),
           py::arg("kind") = KvGroupKind::kFull, py::arg("window") = 0)
      .def_readwrite("kind", &KvGroupSpec::kind)
      .def_readwrite("window", &KvGroupSpec::window);
  py::class_<KvConfig>(m, "KvConfig")
      .def(py::init([](int32_t num_blocks, int32_t block_size, bool caching, std::vector<KvGroupSpec> groups) {
             KvConfig kv;
             kv.num_blocks = num_blocks;
             kv.block_size = block_size;
             kv.enable_prefix_caching = caching;
             kv.groups = std::move(groups);
             return kv;
           }),
           py::arg("num_blocks"), py::arg("block_size") = 16, py::arg("enable_prefix_caching") = true,
           py::arg("groups") = std::vector<KvGroupSpec>{KvGroupSpec{}})
      .def_readwrite("num_blocks", &KvConfig::num_blocks)
      .def_readwrite("block_size", &KvConfig::block_size)
      .def_readwrite("enable_prefix_caching", &KvConfig::enable_prefix_caching)
      .def_readwrite("groups", &KvConfig::groups);
  py::class_<SchedConfig>(m, "SchedConfig")
      .def(py::init([](int32_t max_model_len, int32_t max_num_seqs, int32_t budget, int32_t threshold, bool chunked) {
             SchedConfig sched;
             sched.max_num_seqs = max_num_seqs;
             sched.max_num_batched_tokens = budget;
             sched.max_model_len = max_model_len;
             sched.long_prefill_token_threshold = threshold;
             sched.enable_chunked_prefill = chunked;
             return sched;
           }),
           py::arg("max_model_len"), py::arg("max_num_seqs") = 256, py::arg("max_num_batched_tokens") = 4096,
           py::arg("long_prefill_token_threshold") = 0, py::arg("enable_chunked_prefill") = true)
      .def_readwrite("max_num_seqs", &SchedConfig::max_num_seqs)
      .def_readwrite("max_num_batched_tokens", &SchedConfig::max_num_batched_tokens)
      .def_readwrite("max_model_len", &SchedConfig::max_model_len)
      .def_readwrite("long_prefill_token_threshold", &SchedConfig::long_prefill_token_threshold)
      .def_readwrite("enable_chunked_prefill", &SchedConfig::enable_chunked_prefill)
      .def_readwrite("async_scheduling", &SchedConfig::async_scheduling);
}

void BindUpdates(py::module_& m) {
  py::class_<SequenceUpdate>(m, "SequenceUpdate")
      .def_readonly("id", &SequenceUpdate::id)
      .def_readonly("new_tokens", &SequenceUpdate::new_tokens)
      .def_property_readonly("finish_reason", [](const SequenceUpdate& u) { return FinishReasonName(u.finish_reason); })
      .def_readonly("stop_reason", &SequenceUpdate::stop_reason)
      .def_readonly("num_cached_tokens", &SequenceUpdate::num_cached_tokens);
  py::class_<SchedulerStats>(m, "SchedulerStats")
      .def_readonly("running", &SchedulerStats::running)
      .def_readonly("waiting", &SchedulerStats::waiting)
      .def_readonly("used_blocks", &SchedulerStats::used_blocks)
      .def_readonly("free_blocks", &SchedulerStats::free_blocks)
      .def_readonly("preemptions", &SchedulerStats::preemptions)
      .def_readonly("prefix_query_tokens", &SchedulerStats::prefix_query_tokens)
      .def_readonly("prefix_hit_tokens", &SchedulerStats::prefix_hit_tokens)
      .def_readonly("scheduled_tokens", &SchedulerStats::scheduled_tokens);
}

void AddRequest(Scheduler& scheduler, RequestId id, std::vector<TokenId> prompt, int32_t max_tokens,
                const SamplingParams& sampling, std::vector<TokenId> eos, std::string salt) {
  if (prompt.empty() || max_tokens < 1) {
    throw StatusError(Status::InvalidArgument("a request has at least one prompt token and max_tokens >= 1"));
  }
  auto request = std::make_shared<Request>();
  request->id = id;
  request->prompt = std::move(prompt);
  request->sampling = sampling;
  request->seed = static_cast<uint64_t>(sampling.seed.value_or(0));
  request->max_tokens = max_tokens;
  request->eos_token_ids = std::move(eos);
  request->extra_keys.cache_salt = std::move(salt);
  ThrowIfError(scheduler.Add(std::move(request)));
}

}  // namespace

void BindTestingScheduler(py::module_& m) {
  BindConfigs(m);
  BindUpdates(m);
  py::class_<Scheduler>(m, "Scheduler")
      .def(py::init<const SchedConfig&, const KvConfig&>(), py::arg("sched"), py::arg("kv"))
      .def("add", &AddRequest, py::arg("id"), py::arg("prompt"), py::arg("max_tokens"),
           py::arg("sampling") = SamplingParams{}, py::arg("eos_token_ids") = std::vector<TokenId>{},
           py::arg("cache_salt") = "")
      .def("finish", &Scheduler::Finish, py::arg("id"))
      .def("schedule", &Scheduler::Schedule)
      .def("update", &Scheduler::Update, py::arg("plan"), py::arg("result"))
      .def("has_work", &Scheduler::HasWork)
      .def("stats", &Scheduler::stats)
      .def("reset_prefix_cache", &Scheduler::ResetPrefixCache);
}

}  // namespace fastllm::bindings
