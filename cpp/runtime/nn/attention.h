#pragma once

#include <cstdint>
#include <string>

#include "ops/contract/attention.h"
#include "ops/contract/kv_cache.h"
#include "runtime/nn/builder.h"
#include "runtime/nn/context.h"
#include "runtime/nn/linear.h"
#include "runtime/nn/rotary.h"

namespace fastllm::runtime {

struct AttentionShape {
  int32_t hidden = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  bool bias = false;
};

// Grouped-query self-attention over the paged cache: packed q, k, v projection, rotary embedding, cache write, causal
// attention, output projection. Modules: <path>.qkv (parts q, k, v) and <path>.o. All of the step's keys and values
// are written before any is read, so rows of one step may share blocks that an earlier row fills.
class Attention {
 public:
  Attention(Builder& b, const std::string& path, int32_t layer, const AttentionShape& shape);

  // x, out: [num_tokens, hidden]; out may be x.
  void Forward(const ForwardContext& ctx, const Rotary& rotary, const at::Tensor& x, const at::Tensor& out) const;

 private:
  int32_t layer_;
  AttentionShape shape_;
  Linear qkv_;
  Linear o_;
  Scratch::Slot qkv_slot_;
  Scratch::Slot out_slot_;
  ops::KvWriteFn write_;
  ops::PagedAttentionFn attend_;
};

}  // namespace fastllm::runtime
