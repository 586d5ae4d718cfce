#include "fastllm/worker.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "api/choose_runner.h"
#include "api/device_facts.h"
#include "api/distributed_token.h"
#include "api/worker_command.h"
#include "core/config/field_access.h"
#include "fastllm/config_json.h"
#include "runtime/comm/c10d_communicator.h"
#include "runtime/executor/node_agent.h"
#include "runtime/executor/rank_worker.h"
#include "runtime/runner/make_runner.h"

namespace fastllm {
namespace {

Result<std::unique_ptr<runtime::StepRunner>> MakeRunner(const runtime::RankJob& job, const runtime::Ranks& ranks,
                                                        runtime::PhaseSeconds* phases) {
  FASTLLM_ASSIGN_OR_RETURN(EngineConfig config, EngineConfigFromJson(job.engine));
  config.runtime.cpu_threads = job.num_threads;
  FASTLLM_ASSIGN_OR_RETURN(
      auto source, runtime::OpenModel(config.model.model, config.model.load_format, config.model.generation_config));
  // The driver has looked at the memory, of which the ranks take their shares at one time.
  FASTLLM_ASSIGN_OR_RETURN(api::RunnerChoice choice, api::ChooseRunner(config, source, /*available_bytes=*/0));
  choice.options.ranks = ranks;
  return runtime::MakeStepRunner(std::move(source), choice.options, phases);
}

// The groups that are not on one node, each once: those of tensor ranks, then those of stages.
std::vector<std::vector<int32_t>> GroupsAcrossNodes(const runtime::RankJob& job) {
  const runtime::ShmHubPlan& hub = job.memory.hub;
  std::vector<std::vector<int32_t>> groups;
  const auto add = [&](std::vector<int32_t> ranks) {
    const runtime::NodeRanks node{ranks[0] / hub.node.count * hub.node.count, hub.node.count};
    if (ranks.size() < 2 || node.HasAll(ranks) || std::ranges::find(groups, ranks) != groups.end()) return;
    groups.push_back(std::move(ranks));
  };
  for (int32_t rank = 0; rank < hub.sizes.world(); ++rank) add(runtime::RankTopology{hub.sizes, rank}.TensorGroup());
  for (int32_t rank = 0; rank < hub.sizes.world(); ++rank) add(runtime::RankTopology{hub.sizes, rank}.PipelineGroup());
  return groups;
}

Status JoinGroups(const GroupMaker& make_groups, const runtime::RankJob& job, runtime::Ranks* ranks) {
  const runtime::RankTopology& at = ranks->topology;
  GroupRequest request{job.rank,
                       at.world(),
                       job.store_host,
                       job.store_port,
                       job.interface_address,
                       job.memory.hub.timeout.count(),
                       GroupsAcrossNodes(job)};
  if (request.groups.empty()) return Status::Ok();
  if (!make_groups) {
    return Status::Unimplemented(
        "groups of ranks across nodes need torch.distributed, and so the Python package's worker");
  }
  const std::vector<std::string> names = make_groups(request);
  if (names.size() != request.groups.size()) {
    return Status::Internal(std::to_string(names.size()) + " groups were made where " +
                            std::to_string(request.groups.size()) + " are needed");
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const std::vector<int32_t>& members = request.groups[i];
    if (std::ranges::find(members, job.rank) == members.end()) continue;
    std::vector<std::string> member_names;
    for (const int32_t member : members) member_names.push_back(at.NameOf(member));
    auto& place = members == at.TensorGroup() ? ranks->tensor : ranks->pipeline;
    FASTLLM_ASSIGN_OR_RETURN(place, runtime::MakeC10dCommunicator(names[i], std::move(member_names)));
  }
  return Status::Ok();
}

}  // namespace

int RunWorker(int socket, const GroupMaker& make_groups) {
  runtime::RankWorkerOptions options;
  options.make_runner = MakeRunner;
  options.join_groups = [&](const runtime::RankJob& job, runtime::Ranks* ranks) {
    return JoinGroups(make_groups, job, ranks);
  };
  return runtime::ServeRank(socket, options);
}

Status RunNode(const EngineConfig& config) {
  FASTLLM_RETURN_IF_ERROR(ValidateFields(config));
  const ParallelOptions& parallel = config.parallel;
  runtime::NodeAgentOptions options;
  options.master_addr = parallel.master_addr;
  options.master_port = parallel.master_port;
  options.node = parallel.node_rank;
  options.token = api::DistributedToken(parallel);
  options.num_threads = config.runtime.cpu_threads > 0 ? config.runtime.cpu_threads : api::UsableCores();
  options.command = api::WorkerCommand(parallel);
  options.patience = std::chrono::seconds(parallel.distributed_timeout_seconds);
  options.come_again = parallel.restart_failed_engine;
  return runtime::RunNodeAgent(options);
}

}  // namespace fastllm
