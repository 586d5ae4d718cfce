#include "runtime/comm/topology.h"

#include <cstdint>
#include <limits>
#include <utility>

namespace fastllm::runtime {
namespace {

Status CheckSizes(const ParallelSizes& s) {
  int64_t world = 1;
  for (const auto& [name, size] : {std::pair{"tensor_parallel_size", s.tensor},
                                   {"pipeline_parallel_size", s.pipeline},
                                   {"data_parallel_size", s.data},
                                   {"expert_parallel_size", s.expert},
                                   {"context_parallel_size", s.context}}) {
    if (size < 1) {
      return Status::InvalidArgument(std::string(name) + " is " + std::to_string(size) + "; must be at least 1");
    }
    world *= size;
    if (world > std::numeric_limits<int32_t>::max()) {
      return Status::InvalidArgument("the parallel sizes make more ranks than 2147483647");
    }
  }
  if (s.expert != 1)
    return Status::Unimplemented("expert_parallel_size is " + std::to_string(s.expert) + "; must be 1");
  if (s.context != 1) {
    return Status::Unimplemented("context_parallel_size is " + std::to_string(s.context) + "; must be 1");
  }
  return Status::Ok();
}

}  // namespace

Result<RankTopology> RankTopology::Create(const ParallelSizes& sizes, int32_t rank) {
  FASTLLM_RETURN_IF_ERROR(CheckSizes(sizes));
  if (rank < 0 || rank >= sizes.world()) {
    return Status::InvalidArgument("rank is " + std::to_string(rank) + "; must be in [0, " +
                                   std::to_string(sizes.world() - 1) + "]");
  }
  return RankTopology{sizes, rank};
}

RankCoordinates RankTopology::CoordinatesOf(int32_t of) const {
  return {of % sizes.tensor, of / sizes.tensor % sizes.pipeline, of / (sizes.tensor * sizes.pipeline)};
}

int32_t RankTopology::RankOf(const RankCoordinates& at) const {
  return (at.data * sizes.pipeline + at.pipeline) * sizes.tensor + at.tensor;
}

int32_t RankTopology::output_rank() const { return RankOf({0, sizes.pipeline - 1, dp_rank()}); }

std::vector<int32_t> RankTopology::TensorGroup() const {
  RankCoordinates at = coordinates();
  std::vector<int32_t> ranks;
  for (at.tensor = 0; at.tensor < sizes.tensor; ++at.tensor) ranks.push_back(RankOf(at));
  return ranks;
}

std::vector<int32_t> RankTopology::PipelineGroup() const {
  RankCoordinates at = coordinates();
  std::vector<int32_t> ranks;
  for (at.pipeline = 0; at.pipeline < sizes.pipeline; ++at.pipeline) ranks.push_back(RankOf(at));
  return ranks;
}

std::vector<int32_t> RankTopology::DataGroup() const {
  RankCoordinates at = coordinates();
  std::vector<int32_t> ranks;
  for (at.data = 0; at.data < sizes.data; ++at.data) ranks.push_back(RankOf(at));
  return ranks;
}

std::string RankTopology::NameOf(int32_t of) const {
  const RankCoordinates at = CoordinatesOf(of);
  std::string text =
      "rank " + std::to_string(of) + " (tp " + std::to_string(at.tensor) + ", pp " + std::to_string(at.pipeline);
  if (sizes.data > 1) text += ", dp " + std::to_string(at.data);
  return text + ")";
}

}  // namespace fastllm::runtime
