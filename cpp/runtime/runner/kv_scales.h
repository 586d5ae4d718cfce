// Scales of an 8-bit KV cache, from the checkpoint.
#pragma once

#include <vector>

#include "fastllm/status.h"
#include "ops/contract/kv_cache.h"
#include "runtime/weights/tensor_source.h"

namespace fastllm::runtime {

// Sets k_scale and v_scale of each layer where its cache is in 8-bit floats and the checkpoint (null: none) brings
// them: model.layers.N.self_attn.{k,v}_scale, or the same under self_attn.attn or {k,v}_proj. Errors: kInvalidArgument
// names a scale that is not one positive number.
Status SetKvScales(const TensorSource* tensors, std::vector<ops::KvCacheView>* layers);

}  // namespace fastllm::runtime
