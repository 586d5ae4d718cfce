#include "api/start_executor.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>

#include "api/choose_runner.h"
#include "api/device_facts.h"
#include "api/distributed_token.h"
#include "api/placement.h"
#include "api/worker_command.h"
#include "fastllm/config_json.h"
#include "runtime/device/device_ranks.h"
#include "runtime/executor/local_executor.h"
#include "runtime/executor/processes_executor.h"
#include "runtime/executor/threads_executor.h"

namespace fastllm::api {
namespace {

// What this build cannot do about ranks, by name.
Status CheckRanks(const EngineConfig& config, const RunnerChoice& choice, bool has_processors) {
  const runtime::ParallelSizes& sizes = choice.sizes;
  const std::string& backend = config.parallel.distributed_executor_backend;
  const int32_t nodes = config.parallel.nnodes;
  if (backend != "threads" && has_processors) {
    return Status::Unimplemented(
        "logits processors of the host need ranks that are threads of its process: distributed_executor_backend is \"" +
        backend + "\"");
  }
  if (backend == "threads" && nodes > 1) {
    return Status::InvalidArgument("nnodes is " + std::to_string(nodes) +
                                   "; ranks that are threads are on one node: distributed_executor_backend is \"" +
                                   backend + "\"");
  }
  if (sizes.world() % nodes != 0) {
    return Status::InvalidArgument("nnodes is " + std::to_string(nodes) + ", which does not divide the " +
                                   std::to_string(sizes.world()) + " ranks");
  }
  if (config.parallel.node_rank > 0) {
    return Status::InvalidArgument("node_rank is " + std::to_string(config.parallel.node_rank) +
                                   "; engines are made on node 0, and `fastllm serve` runs the ranks of the others");
  }
  if (config.runtime.cpu_pin_threads && sizes.world() > 1) {
    return Status::Unimplemented("cpu_pin_threads needs one rank; tensor_parallel_size is " +
                                 std::to_string(sizes.tensor) + " and pipeline_parallel_size " +
                                 std::to_string(sizes.pipeline));
  }
  if (choice.options.placement.device == ops::Device::kCpu || sizes.world() == 1) return Status::Ok();
  if (sizes.pipeline > 1) {
    return Status::Unimplemented("pipeline_parallel_size is " + std::to_string(sizes.pipeline) +
                                 "; on device cuda this build has one stage");
  }
  if (backend != "threads") {
    return Status::Unimplemented("tensor_parallel_size is " + std::to_string(sizes.tensor) +
                                 " and distributed_executor_backend \"" + backend +
                                 "\"; on device cuda ranks are threads in this build");
  }
  return runtime::CheckDeviceRanks(choice.options.placement, sizes.tensor);
}

// Two tensors of the largest step, twice: while one step's are read, the next one's are written.
size_t MessageBytes(const runtime::RunnerOptions& options, const runtime::ModelConfig& model) {
  constexpr int64_t kLeast = int64_t{1} << 20, kMost = int64_t{64} << 20;
  const int64_t step = int64_t{options.sched.max_num_batched_tokens} * model.hidden_size * 4 * 2;
  return static_cast<size_t>(std::clamp(2 * step, kLeast, kMost));
}

void LogRefused(const std::string& why) { std::fprintf(stderr, "node 0: %s\n", why.c_str()); }

// The ranks' processes decide nothing anew: they get what was resolved here.
EngineConfig ConfigOfRanks(const EngineConfig& config, const ResolvedConfig& resolved) {
  EngineConfig out = config;
  out.model.max_model_len = resolved.sched.max_model_len;
  out.scheduler.max_num_seqs = resolved.sched.max_num_seqs;
  out.scheduler.max_num_batched_tokens = resolved.sched.max_num_batched_tokens;
  out.cache.num_gpu_blocks_override = resolved.kv.num_blocks;
  out.cache.kv_cache_memory_bytes.reset();
  out.runtime.record_path.clear();
  out.parallel.distributed_token.clear();  // it would go over the network
  return out;
}

Result<std::unique_ptr<Executor>> MakeExecutor(const EngineConfig& config, const RunnerChoice& choice,
                                               runtime::ModelSource source, runtime::PhaseSeconds* phases) {
  const std::chrono::seconds timeout(config.parallel.distributed_timeout_seconds);
  if (const std::string& backend = config.parallel.distributed_executor_backend; backend != "threads") {
    runtime::RankProcessesOptions processes;
    processes.sizes = choice.sizes;
    processes.timeout = timeout;
    processes.command = WorkerCommand(config.parallel);
    processes.engine = ToJson(ConfigOfRanks(config, choice.resolved));
    processes.num_threads = choice.options.num_threads;
    processes.nodes = {config.parallel.nnodes,
                       backend == "processes",
                       config.parallel.master_addr,
                       config.parallel.master_port,
                       DistributedToken(config.parallel),
                       LogRefused};
    processes.message_bytes = MessageBytes(choice.options, source.config);
    source = {};  // the ranks open it themselves
    return runtime::MakeProcessesExecutor(processes, phases);
  }
  if (choice.sizes.world() == 1) return runtime::MakeLocalExecutor(std::move(source), choice.options, phases);
  runtime::RankThreadsOptions threads;
  threads.sizes = choice.sizes;
  threads.timeout = timeout;
  if (choice.options.placement.device != ops::Device::kCpu) {
    const runtime::Placement& placement = choice.options.placement;
    const int64_t row_bytes = source.config.hidden_size * ops::DTypeSize(placement.dtype);
    threads.join = [join = runtime::DeviceRanksOptions{placement, choice.options.sched.max_num_batched_tokens,
                                                       row_bytes, threads.start_timeout()}](
                       runtime::Ranks* ranks, const runtime::AnnounceFn& announce) {
      return runtime::JoinDeviceRanks(join, ranks, announce);
    };
  }
  return runtime::MakeThreadsExecutor(std::move(source), choice.options, threads, phases);
}

}  // namespace

Result<StartedExecutor> StartExecutor(const EngineConfig& config, runtime::ModelSource source,
                                      std::vector<std::shared_ptr<LogitsProcessor>> logits_processors,
                                      runtime::PhaseSeconds* phases) {
  const int64_t available = std::max<int64_t>(0, AvailableMemoryBytes() - CpuWeightBytes(config, source));
  FASTLLM_ASSIGN_OR_RETURN(RunnerChoice choice, ChooseRunner(config, source, available));
  const bool on_cpu = choice.options.placement.device == ops::Device::kCpu;
  if (!on_cpu && !logits_processors.empty()) {
    return Status::Unimplemented("logits processors of the host need the logits in host memory: device must be cpu");
  }
  FASTLLM_RETURN_IF_ERROR(CheckRanks(config, choice, !logits_processors.empty()));
  choice.options.logits_processors = std::move(logits_processors);
  StartedExecutor out;
  out.resolved = choice.resolved;
  if (!on_cpu) {
    choice.options.size_kv = [&](const runtime::DeviceMemoryUse& use) -> Result<KvConfig> {
      FASTLLM_RETURN_IF_ERROR(MeasureDevice(config, use, &choice.device, &out.resolved.values));
      FASTLLM_RETURN_IF_ERROR(ResolveKvBlocks(config, choice.facts, choice.device, &out.resolved));
      return out.resolved.kv;
    };
  }
  FASTLLM_ASSIGN_OR_RETURN(out.executor, MakeExecutor(config, choice, std::move(source), phases));
  return out;
}

}  // namespace fastllm::api
