#include "runtime/runner/kv_storage.h"

#include <limits>
#include <string>
#include <utility>

#include "runtime/runner/runner_options.h"

namespace fastllm::runtime {

int64_t KvBytesPerBlock(const ModelConfig& c, int32_t block_size, ops::DType dtype) {
  constexpr int64_t kKandV = 2;
  return kKandV * c.num_layers * c.num_kv_heads * c.head_dim * ops::DTypeSize(dtype) * block_size;
}

Result<KvStorage> KvStorage::Create(const ModelConfig& c, int32_t num_blocks, int32_t block_size) {
  const int64_t per_block = KvBytesPerBlock(c, block_size);
  if (num_blocks > std::numeric_limits<int64_t>::max() / per_block) {
    return Status::ResourceExhausted("a KV cache of " + std::to_string(num_blocks) + " blocks of " +
                                     std::to_string(per_block) + " bytes is larger than the address space");
  }
  KvStorage kv;
  FASTLLM_ASSIGN_OR_RETURN(kv.memory_,
                           HostMemory::Map(static_cast<size_t>(per_block * num_blocks), /*huge_pages=*/false));
  const int64_t elements = int64_t{num_blocks} * c.num_kv_heads * block_size * c.head_dim;
  float* p = static_cast<float*>(kv.memory_.data());
  for (int32_t layer = 0; layer < c.num_layers; ++layer, p += 2 * elements) {
    kv.layers_.push_back({p, p + elements, num_blocks, c.num_kv_heads, block_size, c.head_dim});
  }
  return kv;
}

}  // namespace fastllm::runtime
