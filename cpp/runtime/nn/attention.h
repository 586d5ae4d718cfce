#pragma once

#include <cstdint>
#include <string>

#include "ops/contract/attention.h"
#include "ops/contract/rope_kv_write.h"
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
  bool qkv_bias = false;
  bool o_bias = false;
  bool qk_norm = false;  // RMS norm of each head of q and k, before the rotation (Qwen3)
  float norm_eps = 1e-6f;
};

// Grouped-query self-attention over the paged cache: packed q, k, v projection; norms of q and k, rotary embedding and
// cache write in one op; causal attention; output projection. Modules: <path>.qkv (parts q, k, v), <path>.o, and with
// qk_norm <path>.q_norm and <path>.k_norm. All of the step's keys and values are written before any is read, so rows
// of one step may share blocks that an earlier row fills.
class Attention {
 public:
  Attention(Builder& b, const std::string& path, int32_t layer, const AttentionShape& shape, bool interleaved);

  // x, out: [num_tokens, hidden]; out may be x. Input: at::Tensor or NormedInput (nn/rms_norm.h), whose x out may be.
  template <typename Input>
  void Forward(const ForwardContext& ctx, const Rotary& rotary, const Input& x, const at::Tensor& out) const;

 private:
  void WriteCache(const ForwardContext& ctx, const Rotary& rotary, const at::Tensor& qkv) const;

  int32_t layer_;
  AttentionShape shape_;
  Linear qkv_;
  Linear o_;
  Param* q_norm_ = nullptr;
  Param* k_norm_ = nullptr;
  Scratch::Slot qkv_slot_;
  Scratch::Slot out_slot_;
  ops::RopeKvWriteFn write_;
  ops::PagedAttentionFn attend_;
};

}  // namespace fastllm::runtime
