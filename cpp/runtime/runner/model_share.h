// ModelShare: what a rank holds of a model.
#pragma once

#include <cstdint>
#include <vector>

#include "fastllm/status.h"
#include "runtime/comm/topology.h"
#include "runtime/models/model_config.h"
#include "runtime/nn/param.h"

namespace fastllm::runtime {

struct ModelShare {
  ModelConfig config;  // the model's, with this rank's layers and heads: what the KV cache and attention plans are for
  LayerSpan layers;
};

// kInvalidArgument names the sizes that do not fit: heads that the tensor ranks do not divide, more stages than layers.
Result<ModelShare> ShareOf(const ModelConfig& config, const RankTopology& topology);

// Layers of each of `stages` pipeline stages, at most as many as there are layers: the most even of the splits whose
// costliest stage costs least. A cost is the weights that a decode step reads: all of a layer's and of the output head,
// one row of the embedding.
std::vector<int32_t> BalanceLayers(const ModelConfig& config, int32_t stages);

// Bytes of KV cache that one block takes: over all ranks together, and on the rank where it takes most.
struct KvBlockBytes {
  int64_t all = 0;
  int64_t most = 0;
};
Result<KvBlockBytes> KvBlockBytesOf(const ModelConfig& config, const ParallelSizes& sizes, int32_t block_size,
                                    ops::DType dtype);

}  // namespace fastllm::runtime
