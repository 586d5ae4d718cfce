#include "runtime/runner/kv_storage.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "runtime/quant/pack.h"
#include "runtime/quant/pack_half.h"
#include "runtime/quant/quantize.h"
#include "runtime/runner/runner_options.h"

namespace fastllm::runtime {

namespace {

constexpr int64_t kScaleBytes = sizeof(float);  // of each token and head of an int8 cache

}  // namespace

int64_t KvBytesPerBlock(const ModelConfig& c, int32_t block_size, ops::DType dtype) {
  constexpr int64_t kKandV = 2;
  const int64_t row = c.head_dim * ops::DTypeSize(dtype) + (dtype == ops::DType::kI8 ? kScaleBytes : 0);
  return kKandV * c.num_layers * c.num_kv_heads * row * block_size;
}

bool UsesQuantized(const ModelSource& source, bool keep_quantized, bool quantize_int8) {
  if (quantize_int8) return true;
  if (source.tensors == nullptr || !keep_quantized) return false;
  const auto& tensors = source.tensors->tensors();
  return std::any_of(tensors.begin(), tensors.end(), [](const TensorInfo& t) {
    return t.shape.size() == 2 && (QuantFormatOf(t.type).has_value() || HalfTypeOf(t.type).has_value());
  });
}

ops::DType KvDType(const std::string& kv_cache_dtype, bool quantized) {
  if (kv_cache_dtype == "fp8" || kv_cache_dtype == "fp8_e4m3") return ops::DType::kF8E4M3;
  if (kv_cache_dtype == "float16") return ops::DType::kF16;
  if (kv_cache_dtype == "int8") return ops::DType::kI8;
  if (kv_cache_dtype == "bfloat16" || (kv_cache_dtype == "auto" && quantized)) return ops::DType::kBF16;
  return ops::DType::kF32;
}

int64_t WeightBytes(const ModelSource& source, bool keep_quantized, bool quantize_int8) {
  int64_t bytes = 0;
  if (source.tensors == nullptr) return bytes;
  for (const TensorInfo& t : source.tensors->tensors()) {
    const bool matrix = t.shape.size() == 2;
    const bool kept = keep_quantized && (QuantFormatOf(t.type).has_value() || HalfTypeOf(t.type).has_value());
    const bool as_stored = (matrix && kept) || t.type == WeightType::kF8E4M3;
    if (matrix && quantize_int8 && WeightBlockElements(t.type) == 1) {
      bytes += t.numel() / WeightBlockElements(kInt8Type) * WeightBlockBytes(kInt8Type);
    } else {
      bytes += as_stored ? static_cast<int64_t>(t.nbytes) : t.numel() * int64_t{4};
    }
  }
  return bytes;
}

Result<KvStorage> KvStorage::Create(const ModelConfig& c, int32_t num_blocks, int32_t block_size, ops::DType dtype) {
  const int64_t per_block = KvBytesPerBlock(c, block_size, dtype);
  if (num_blocks > std::numeric_limits<int64_t>::max() / per_block) {
    return Status::ResourceExhausted("a KV cache of " + std::to_string(num_blocks) + " blocks of " +
                                     std::to_string(per_block) + " bytes is larger than the address space");
  }
  KvStorage kv;
  // All layers of a block lie together, so that blocks in use fill huge pages whole; an int8 cache goes layer by layer.
  const bool together = dtype != ops::DType::kI8;
  FASTLLM_ASSIGN_OR_RETURN(kv.memory_,
                           HostMemory::Map(static_cast<size_t>(per_block * num_blocks + kScaleBytes), together));
  const int64_t elements = int64_t{num_blocks} * c.num_kv_heads * block_size * c.head_dim;
  char* p = static_cast<char*>(kv.memory_.data());
  const int64_t bytes = elements * ops::DTypeSize(dtype) / (together ? num_blocks : 1);
  for (int32_t layer = 0; layer < c.num_layers; ++layer, p += 2 * bytes) {
    ops::KvCacheView view;
    view.k = p;
    view.v = p + bytes;
    if (together) view.block_stride = per_block / ops::DTypeSize(dtype);
    view.num_blocks = num_blocks;
    view.num_kv_heads = c.num_kv_heads;
    view.block_size = block_size;
    view.head_dim = c.head_dim;
    view.dtype = dtype;
    kv.layers_.push_back(view);
  }
  if (dtype != ops::DType::kI8) return kv;
  // The scales lie behind all elements, aligned.
  auto* scales =
      reinterpret_cast<float*>(p + (kScaleBytes - reinterpret_cast<uintptr_t>(p) % kScaleBytes) % kScaleBytes);
  for (ops::KvCacheView& view : kv.layers_) {
    view.k_row_scales = scales;
    view.v_row_scales = scales + elements / c.head_dim;
    scales += 2 * elements / c.head_dim;
  }
  return kv;
}

}  // namespace fastllm::runtime
