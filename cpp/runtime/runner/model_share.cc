#include "runtime/runner/model_share.h"

#include <algorithm>
#include <limits>
#include <string>

#include "runtime/runner/runner_options.h"

namespace fastllm::runtime {
namespace {

std::string Num(int64_t n) { return std::to_string(n); }

Status CheckHeads(const ModelConfig& c, int32_t ranks) {
  if (c.num_heads % ranks != 0) {
    return Status::InvalidArgument("tensor_parallel_size is " + Num(ranks) + ", which does not divide the " +
                                   Num(c.num_heads) + " attention heads of the model");
  }
  if (c.num_kv_heads % ranks != 0 && ranks % c.num_kv_heads != 0) {
    return Status::InvalidArgument("tensor_parallel_size is " + Num(ranks) + ", which neither divides the " +
                                   Num(c.num_kv_heads) + " KV heads of the model nor is a multiple of them");
  }
  return Status::Ok();
}

struct Costs {
  int64_t layer = 0;
  int64_t embedding = 0;
  int64_t head = 0;

  int64_t Of(int64_t layers, bool first, bool last) const {
    return layers * layer + (first ? embedding : 0) + (last ? head : 0);
  }
};

Costs CostsOf(const ModelConfig& c) {
  const int64_t hidden = c.hidden_size;
  const int64_t attention = 2 * (int64_t{c.num_heads} + c.num_kv_heads) * c.head_dim;
  return {hidden * (attention + int64_t{3} * c.intermediate_size), hidden, hidden * c.vocab_size};
}

constexpr double kNoCost = std::numeric_limits<double>::infinity();

struct Split {
  double cost = kNoCost;
  std::vector<int32_t> layers;
};

// The split of the layers into stages that cost at most `most` each for which join(... join(0, stage), stage) is least.
template <typename Join>
Split BestSplit(const Costs& costs, int32_t layers, int32_t stages, double most, const Join& join) {
  // best[s][n]: of the first s stages when these have n layers; chosen: the layers of the last of them.
  const auto size = static_cast<size_t>(layers) + 1;
  std::vector<std::vector<double>> best(stages + 1, std::vector<double>(size, kNoCost));
  std::vector<std::vector<int32_t>> chosen(stages + 1, std::vector<int32_t>(size, 0));
  best[0][0] = 0;
  for (int32_t s = 1; s <= stages; ++s) {
    for (int32_t n = s; n <= layers; ++n) {
      for (int32_t own = n - s + 1; own >= 1; --own) {
        const auto cost = static_cast<double>(costs.Of(own, s == 1, s == stages));
        if (cost > most || best[s - 1][n - own] == kNoCost) continue;
        const double joined = join(best[s - 1][n - own], cost);
        if (joined >= best[s][n]) continue;
        best[s][n] = joined;
        chosen[s][n] = own;
      }
    }
  }
  Split split{best[stages][layers], std::vector<int32_t>(stages)};
  for (int32_t s = stages, n = layers; s > 0; --s) {
    split.layers[s - 1] = chosen[s][n];
    n -= chosen[s][n];
  }
  return split;
}

}  // namespace

std::vector<int32_t> BalanceLayers(const ModelConfig& config, int32_t stages) {
  const Costs costs = CostsOf(config);
  const double most = BestSplit(costs, config.num_layers, stages, kNoCost, [](double sum, double own) {
                        return std::max(sum, own);
                      }).cost;
  // Of the splits whose costliest stage costs no more, the most even one.
  return BestSplit(costs, config.num_layers, stages, most, [](double sum, double own) { return sum + own * own; })
      .layers;
}

Result<ModelShare> ShareOf(const ModelConfig& config, const RankTopology& topology) {
  const ParallelSizes& sizes = topology.sizes;
  FASTLLM_RETURN_IF_ERROR(CheckHeads(config, sizes.tensor));
  if (sizes.pipeline > config.num_layers) {
    return Status::InvalidArgument("pipeline_parallel_size is " + Num(sizes.pipeline) + "; the model has " +
                                   Num(config.num_layers) + " layers");
  }
  ModelShare share{config, {0, 0, config.num_layers}};
  const std::vector<int32_t> layers = BalanceLayers(config, sizes.pipeline);
  for (int32_t s = 0; s <= topology.pp_rank(); ++s) {
    share.layers.first = share.layers.last;
    share.layers.last += layers[s];
  }
  share.config.num_layers = share.layers.last - share.layers.first;
  share.config.num_heads = config.num_heads / sizes.tensor;
  share.config.num_kv_heads = std::max(1, config.num_kv_heads / sizes.tensor);
  return share;
}

Result<KvBlockBytes> KvBlockBytesOf(const ModelConfig& config, const ParallelSizes& sizes, int32_t block_size,
                                    ops::DType dtype) {
  KvBlockBytes bytes;
  for (int32_t rank = 0; rank < sizes.replica(); ++rank) {
    FASTLLM_ASSIGN_OR_RETURN(const ModelShare share, ShareOf(config, {sizes, rank}));
    const int64_t of_rank = KvBytesPerBlock(share.config, block_size, dtype);
    bytes.all += of_rank;
    bytes.most = std::max(bytes.most, of_rank);
  }
  return bytes;
}

}  // namespace fastllm::runtime
