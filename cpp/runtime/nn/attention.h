#pragma once

#include <cstdint>
#include <string>

#include "ops/contract/attention.h"
#include "ops/contract/embedding.h"
#include "ops/contract/rope_kv_write.h"
#include "runtime/nn/builder.h"
#include "runtime/nn/context.h"
#include "runtime/nn/fused.h"
#include "runtime/nn/linear.h"
#include "runtime/nn/rotary.h"

namespace fastllm::runtime {

// Of the whole model.
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
// of one step may share blocks that an earlier row fills. Over several ranks each has some of the heads, and the KV
// heads that these read.
class Attention {
 public:
  Attention(Builder& b, const std::string& path, int32_t layer, const AttentionShape& shape, bool interleaved);

  // x, out: [num_tokens, hidden]; out may be x. Input: at::Tensor or NormedInput (nn/rms_norm.h), whose x out may be.
  // adds: to what out, another tensor than x, holds; where CanAdd().
  template <typename Input>
  void Forward(const ForwardContext& ctx, const Rotary& rotary, const Input& x, const at::Tensor& out,
               bool adds = false) const;
  bool CanAdd(int64_t rows) const { return o_.CanAdd(rows); }

  // The same, `out` being of the tokens of ctx.wanted alone: [wanted, hidden], another tensor than the input's.
  void ForwardWanted(const ForwardContext& ctx, const Rotary& rotary, const NormedInput& x,
                     const at::Tensor& out) const;

  // The same of an x that is normalised already, with the rotation and the cache write folded into the first product
  // where CanFuseQkv(), x being an activation.
  bool CanFuseQkv(const FusedOps& fused, const at::Tensor& x) const {
    return fused.norm_qkv != nullptr && q_norm_ == nullptr && qkv_.CanFuse(x);
  }
  void ForwardNormed(const ForwardContext& ctx, const FusedOps& fused, const Rotary& rotary, const at::Tensor& x,
                     const at::Tensor& out) const;

  // The same with the norm before it and the residual add after it folded in. Where CanFuse(), x being an activation.
  bool CanFuse(const at::Tensor& x) const { return qkv_.CanFuse(x) && o_.CanFuse(x); }
  ops::NextWeight first_weight() const { return qkv_.AsNext(); }
  void ForwardFused(const ForwardContext& ctx, const FusedOps& fused, const Rotary& rotary, const FusedStream& stream,
                    const FusedNext& next) const;

 private:
  Attention(Builder& b, const std::string& path, int32_t layer, const AttentionShape& shape, bool interleaved, Slice q,
            Slice kv);
  // q, k and v of normalised or scaled rows, rotated and in the cache: in one op, or else in two.
  const at::Tensor& FusedQkv(const ForwardContext& ctx, const FusedOps& fused, const Rotary& rotary,
                             const FusedStream& stream) const;
  ops::RopeKvWriteParams CacheWrite(const ForwardContext& ctx, const Rotary& rotary, const at::Tensor& qkv) const;
  const at::Tensor& Attend(const ForwardContext& ctx, const at::Tensor& qkv) const;
  const at::Tensor& Wanted(const ForwardContext& ctx, const at::Tensor& all, Scratch::Slot slot) const;

  int32_t layer_;
  AttentionShape shape_;  // with this rank's heads
  Linear qkv_;
  Linear o_;
  Param* q_norm_ = nullptr;
  Param* k_norm_ = nullptr;
  Scratch::Slot qkv_slot_;
  Scratch::Slot out_slot_;
  struct {
    ops::GatherRowsFn gather;
    Scratch::Slot qkv, out;
  } wanted_;
  ops::RopeKvWriteFn write_;
  ops::PagedAttentionFn attend_;
};

}  // namespace fastllm::runtime
