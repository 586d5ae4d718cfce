// KvStorage: the memory of the paged KV cache, for all layers.
#pragma once

#include <cstdint>
#include <vector>

#include "fastllm/status.h"
#include "ops/contract/kv_cache.h"
#include "runtime/models/model_config.h"
#include "runtime/tensor/host_memory.h"

namespace fastllm::runtime {

// One mapping in huge pages, [num_blocks, layers, K and V, num_kv_heads, block_size, head_dim] dtype; memory is taken
// as blocks are first written. Of an int8 cache in small pages, K and V of each layer are [num_blocks, ...], and the
// scales lie behind them.
class KvStorage {
 public:
  static Result<KvStorage> Create(const ModelConfig& config, int32_t num_blocks, int32_t block_size, ops::DType dtype);

  const std::vector<ops::KvCacheView>& layers() const { return layers_; }
  std::vector<ops::KvCacheView>* mutable_layers() { return &layers_; }

 private:
  HostMemory memory_;
  std::vector<ops::KvCacheView> layers_;
};

}  // namespace fastllm::runtime
