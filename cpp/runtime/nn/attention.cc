#include "runtime/nn/attention.h"

#include <cmath>

#include "runtime/nn/pieces.h"

namespace fastllm::runtime {
namespace {

// p moved on by elements of a size.
void* Advance(void* p, int64_t elements, size_t element_size) {
  return static_cast<char*>(p) + elements * static_cast<int64_t>(element_size);
}

// y = layer(x), piece by piece where the sums over ranks before or after it are cut.
void Project(const ForwardContext& ctx, const Linear& layer, const at::Tensor& x, const at::Tensor& y) {
  const bool cut = InPieces(ctx, y.size(0), [&](const ForwardContext& piece, int64_t first, int64_t rows) {
    layer.Forward(piece, RowsOf(x, first, rows), RowsOf(y, first, rows));
  });
  if (!cut) layer.Forward(ctx, x, y);
}
void Project(const ForwardContext& ctx, const Linear& layer, const NormedInput& in, const at::Tensor& y) {
  const bool cut = InPieces(ctx, y.size(0), [&](const ForwardContext& piece, int64_t first, int64_t rows) {
    layer.Forward(piece, PieceOf(in, first, rows).input(), RowsOf(y, first, rows));
  });
  if (!cut) layer.Forward(ctx, in, y);
}

AttentionShape WithHeads(AttentionShape s, const Slice& q, const Slice& kv) {
  s.num_heads = static_cast<int32_t>(q.size / s.head_dim);
  s.num_kv_heads = static_cast<int32_t>(kv.size / s.head_dim);
  return s;
}

}  // namespace

Attention::Attention(Builder& b, const std::string& path, int32_t layer, const AttentionShape& s, bool interleaved)
    : Attention(b, path, layer, s, interleaved, b.Share(s.num_heads, s.head_dim, "attention heads"),
                b.Share(s.num_kv_heads, s.head_dim, "KV heads", /*repeat=*/true)) {}

Attention::Attention(Builder& b, const std::string& path, int32_t layer, const AttentionShape& s, bool interleaved,
                     Slice q, Slice kv)
    : layer_(layer),
      shape_(WithHeads(s, q, kv)),
      qkv_(b, path + ".qkv", {q, kv, kv}, s.hidden, s.qkv_bias),
      o_(b, path + ".o", {s.hidden}, q, s.o_bias),
      qkv_slot_(b.Buffer("qkv", q.size + 2 * kv.size)),
      out_slot_(b.Buffer("attention", q.size)),
      wanted_{b.Op<ops::GatherRowsFn>(ops::OpId::kGatherRows), b.Buffer("wanted_qkv", q.size + 2 * kv.size),
              b.Buffer("wanted_attention", q.size)},
      write_(b.Op<ops::RopeKvWriteFn>(ops::OpId::kRopeKvWrite, s.head_dim,
                                      interleaved ? ops::kFeatureInterleavedRope : ops::kFeatureNone)),
      attend_(
          b.Op<ops::PagedAttentionFn>(ops::OpId::kPagedAttention, s.head_dim,
                                      shape_.num_heads == shape_.num_kv_heads ? ops::kFeatureNone : ops::kFeatureGqa)) {
  qkv_.RoundFinely();
  if (!s.qk_norm) return;
  q_norm_ = b.Norm(path + ".q_norm.weight", s.head_dim);
  k_norm_ = b.Norm(path + ".k_norm.weight", s.head_dim);
}

ops::RopeKvWriteParams Attention::CacheWrite(const ForwardContext& ctx, const Rotary& rotary,
                                             const at::Tensor& qkv) const {
  const int64_t kv_width = int64_t{shape_.num_kv_heads} * shape_.head_dim;
  ops::RopeKvWriteParams w;
  w.cache = ctx.kv_layers[layer_];
  w.q = qkv.data_ptr();
  w.k = Advance(w.q, int64_t{shape_.num_heads} * shape_.head_dim, qkv.element_size());
  w.v = Advance(const_cast<void*>(w.k), kv_width, qkv.element_size());
  w.q_norm_weight = q_norm_ == nullptr ? nullptr : q_norm_->value.const_data_ptr();
  w.k_norm_weight = k_norm_ == nullptr ? nullptr : k_norm_->value.const_data_ptr();
  w.cos_sin = rotary.cos_sin();
  w.positions = ctx.input.positions;
  w.slot_mapping = ctx.input.slot_mapping;
  w.q_stride = w.k_stride = w.v_stride = qkv_.out_features();
  w.num_tokens = ctx.input.num_tokens;
  w.num_q_heads = shape_.num_heads;
  w.rotary_dim = rotary.rotary_dim();
  w.eps = shape_.norm_eps;
  w.interleaved = rotary.interleaved();
  return w;
}

const at::Tensor& Attention::Attend(const ForwardContext& ctx, const at::Tensor& qkv) const {
  const StepInput& in = ctx.input;
  const at::Tensor& attended = ctx.scratch->Rows(out_slot_, in.num_tokens);
  ops::PagedAttentionParams a;
  a.cache = ctx.kv_layers[layer_];
  a.out = attended.data_ptr();
  a.q = qkv.const_data_ptr();
  a.query_start = in.query_start;
  a.seq_len = in.seq_len;
  a.block_table = in.block_table;
  a.q_stride = qkv_.out_features();
  a.num_tokens = in.num_tokens;
  a.num_seqs = in.num_seqs;
  a.max_blocks = in.max_blocks;
  a.num_q_heads = shape_.num_heads;
  a.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  a.plan = ctx.attention.plan;
  a.decode_workers = ctx.attention.decode_workers;
  a.prefill_tiles = ctx.attention.prefill_tiles;
  a.workspace = ctx.attention.workspace;
  a.workspace_bytes = ctx.attention.workspace_bytes;
  attend_(a, ctx.op);
  return attended;
}

template <typename Input>
void Attention::Forward(const ForwardContext& ctx, const Rotary& rotary, const Input& x, const at::Tensor& out,
                        bool adds) const {
  const at::Tensor& qkv = ctx.scratch->Rows(qkv_slot_, ctx.input.num_tokens);
  Project(ctx, qkv_, x, qkv);
  write_(CacheWrite(ctx, rotary, qkv), ctx.op);
  const at::Tensor& attended = Attend(ctx, qkv);
  adds ? o_.ForwardAdd(ctx, attended, out) : Project(ctx, o_, attended, out);
}

void Attention::ForwardWanted(const ForwardContext& ctx, const Rotary& rotary, const NormedInput& x,
                              const at::Tensor& out) const {
  const at::Tensor& qkv = ctx.scratch->Rows(qkv_slot_, ctx.input.num_tokens);
  qkv_.Forward(ctx, x, qkv);
  write_(CacheWrite(ctx, rotary, qkv), ctx.op);
  if (ctx.wanted.count == 0) return;
  if (ctx.wanted.query_start == nullptr) {
    o_.Forward(ctx, Wanted(ctx, Attend(ctx, qkv), wanted_.out), out);
    return;
  }
  ForwardContext few = ctx;
  few.input.num_tokens = ctx.wanted.count;
  few.input.query_start = ctx.wanted.query_start;
  o_.Forward(ctx, Attend(few, Wanted(ctx, qkv, wanted_.qkv)), out);
}

const at::Tensor& Attention::Wanted(const ForwardContext& ctx, const at::Tensor& all, Scratch::Slot slot) const {
  const at::Tensor& picked = ctx.scratch->Rows(slot, ctx.wanted.count);
  wanted_.gather(
      {picked.data_ptr(), all.const_data_ptr(), ctx.wanted.tokens, ctx.wanted.count, static_cast<int32_t>(all.size(1))},
      ctx.op);
  return picked;
}

const at::Tensor& Attention::FusedQkv(const ForwardContext& ctx, const FusedOps& fused, const Rotary& rotary,
                                      const FusedStream& stream) const {
  const at::Tensor& qkv = ctx.scratch->Rows(qkv_slot_, ctx.input.num_tokens);
  const ops::RopeKvWriteParams write = CacheWrite(ctx, rotary, qkv);
  const bool whole = write.rotary_dim == shape_.head_dim && !write.interleaved && q_norm_ == nullptr &&
                     ops::DTypeSize(write.cache.dtype) == static_cast<int64_t>(qkv.element_size());
  if (fused.norm_qkv != nullptr && whole) {
    ops::NormQkvParams p;
    p.in = stream.Rows();
    p.weight = qkv_.weight_data();
    p.bias = qkv_.bias_data();
    p.k = shape_.hidden;
    p.rope = write;
    p.next = o_.AsNext();
    fused.norm_qkv(p, ctx.op);
  } else if (fused.norm_linear == nullptr) {  // x is normalised
    qkv_.Forward(ctx, stream.x, qkv);
    write_(write, ctx.op);
  } else {
    qkv_.NormForward(ctx, fused, stream, qkv, /*gated=*/false, {});
    write_(write, ctx.op);
  }
  return qkv;
}

void Attention::ForwardFused(const ForwardContext& ctx, const FusedOps& fused, const Rotary& rotary,
                             const FusedStream& stream, const FusedNext& next) const {
  o_.AddForward(ctx, fused, Attend(ctx, FusedQkv(ctx, fused, rotary, stream)), stream, next);
}

void Attention::ForwardNormed(const ForwardContext& ctx, const FusedOps& fused, const Rotary& rotary,
                              const at::Tensor& x, const at::Tensor& out) const {
  Project(ctx, o_, Attend(ctx, FusedQkv(ctx, fused, rotary, {x, x, x, shape_.norm_eps, /*normed=*/true})), out);
}

template void Attention::Forward(const ForwardContext&, const Rotary&, const at::Tensor&, const at::Tensor&,
                                 bool) const;
template void Attention::Forward(const ForwardContext&, const Rotary&, const NormedInput&, const at::Tensor&,
                                 bool) const;

}  // namespace fastllm::runtime
