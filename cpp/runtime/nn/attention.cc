#include "runtime/nn/attention.h"

#include <cmath>

namespace fastllm::runtime {

Attention::Attention(Builder& b, const std::string& path, int32_t layer, const AttentionShape& s)
    : layer_(layer),
      shape_(s),
      qkv_(b, path + ".qkv",
           {int64_t{s.num_heads} * s.head_dim, int64_t{s.num_kv_heads} * s.head_dim,
            int64_t{s.num_kv_heads} * s.head_dim},
           s.hidden, s.bias),
      o_(b, path + ".o", {s.hidden}, int64_t{s.num_heads} * s.head_dim, s.bias),
      qkv_slot_(b.Buffer("qkv", (int64_t{s.num_heads} + 2 * s.num_kv_heads) * s.head_dim)),
      out_slot_(b.Buffer("attention", int64_t{s.num_heads} * s.head_dim)),
      write_(b.Op<ops::KvWriteFn>(ops::OpId::kKvWrite, s.head_dim)),
      attend_(b.Op<ops::PagedAttentionFn>(ops::OpId::kPagedAttention, s.head_dim,
                                          s.num_heads == s.num_kv_heads ? ops::kFeatureNone : ops::kFeatureGqa)) {}

void Attention::Forward(const ForwardContext& ctx, const Rotary& rotary, const at::Tensor& x,
                        const at::Tensor& out) const {
  const StepInput& in = ctx.input;
  const at::Tensor& qkv = ctx.scratch->Rows(qkv_slot_, in.num_tokens);
  qkv_.Forward(ctx, x, qkv);
  const int64_t stride = qkv_.out_features();
  float* q = qkv.data_ptr<float>();
  float* k = q + int64_t{shape_.num_heads} * shape_.head_dim;
  float* v = k + int64_t{shape_.num_kv_heads} * shape_.head_dim;
  rotary.Forward(ctx, q, k, stride);

  ops::KvWriteParams w;
  w.cache = ctx.kv_layers[layer_];
  w.k = k;
  w.v = v;
  w.slot_mapping = in.slot_mapping;
  w.k_stride = stride;
  w.v_stride = stride;
  w.num_tokens = in.num_tokens;
  write_(w, ctx.op);

  const at::Tensor& attended = ctx.scratch->Rows(out_slot_, in.num_tokens);
  ops::PagedAttentionParams a;
  a.cache = ctx.kv_layers[layer_];
  a.out = attended.data_ptr<float>();
  a.q = q;
  a.query_start = in.query_start;
  a.seq_len = in.seq_len;
  a.block_table = in.block_table;
  a.q_stride = stride;
  a.num_tokens = in.num_tokens;
  a.num_seqs = in.num_seqs;
  a.max_blocks = in.max_blocks;
  a.num_q_heads = shape_.num_heads;
  a.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  attend_(a, ctx.op);

  o_.Forward(ctx, attended, out);
}

}  // namespace fastllm::runtime
