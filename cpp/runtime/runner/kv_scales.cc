#include "runtime/runner/kv_scales.h"

#include <cmath>
#include <string>

namespace fastllm::runtime {
namespace {

// `which`: "k" or "v".
Status ReadScale(const TensorSource& tensors, const std::string& layer, const std::string& which, float* scale) {
  for (const std::string& place : {std::string(), std::string("attn."), which + "_proj."}) {
    const TensorInfo* t = tensors.Find(layer + place + which + "_scale");
    if (t == nullptr) continue;
    float value = 0.0f;
    if (t->numel() == 1) DequantizeRows(*t, 0, 1, &value);
    if (!(value > 0.0f) || !std::isfinite(value)) {
      return Status::InvalidArgument("tensor " + t->name + " of " + std::to_string(t->numel()) + " element(s) is " +
                                     std::to_string(value) + "; a scale of the KV cache is one positive number");
    }
    *scale = value;
    return Status::Ok();
  }
  return Status::Ok();
}

}  // namespace

Status SetKvScales(const TensorSource* tensors, std::vector<ops::KvCacheView>* layers) {
  if (tensors == nullptr) return Status::Ok();
  for (size_t i = 0; i < layers->size(); ++i) {
    ops::KvCacheView& view = (*layers)[i];
    if (view.dtype != ops::DType::kF8E4M3) continue;
    const std::string layer = "model.layers." + std::to_string(i) + ".self_attn.";
    FASTLLM_RETURN_IF_ERROR(ReadScale(*tensors, layer, "k", &view.k_scale));
    FASTLLM_RETURN_IF_ERROR(ReadScale(*tensors, layer, "v", &view.v_scale));
  }
  return Status::Ok();
}

}  // namespace fastllm::runtime
