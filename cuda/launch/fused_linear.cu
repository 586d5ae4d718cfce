// Launchers of the products with norm, SiLU-mul, rotation, cache write and residual add folded in.
#include <algorithm>
#include <initializer_list>
#include <string>

#include "core/base/check.h"
#include "cuda/launch/launch.h"
#include "cuda/launch/skinny.cuh"
#include "ops/contract/fused_linear.h"

namespace fastllm::cuda {
namespace {

using ops::DType;
using ops::OpContext;
using ops::OpId;

static_assert(ops::kSquareColumns == kSkinnyRowsOfWeight, "a block leaves one sum of squares for each row");

// What is fetched ahead of the next product: as much as the memory delivers while a kernel ends and the next begins,
// and while attention over a few sequences runs.
constexpr int64_t kAheadBytes = 16 << 20, kAheadOfAttention = 28 << 20;

FusedNext Ahead(const ops::NextWeight& next, int64_t most) {
  return {static_cast<const char*>(next.data), std::min(next.bytes, most) / 16 * 16};
}

template <typename T>
SkinnyArgs<T, T> Args(const char* op, const ops::NormedRows& in, const void* weight, const void* bias, void* out,
                      int32_t rows, int32_t n, int32_t k, std::initializer_list<const void*> others) {
  bool aligned = Aligned16(out);
  for (const void* p : others) aligned &= Aligned16(p);
  FASTLLM_CHECK(n % 8 == 0 && aligned, std::string(op) + ": " + std::to_string(n) +
                                           " columns; multiples of 8, and pointers aligned to 16 bytes");
  SkinnyArgs<T, T> a;
  a.out = static_cast<T*>(out);
  a.x = static_cast<const T*>(in.x);
  a.weight = static_cast<const T*>(weight);
  a.bias = static_cast<const T*>(bias);
  a.out_stride = a.n = n;
  a.m = rows;
  a.k = k;
  a.squares = in.squares;
  a.eps = in.eps;
  return a;
}

template <SkinnyFinish kFinish, typename T>
void Launch(const SkinnyArgs<T, T>& a, const OpContext& ctx, const char* op) {
  LaunchSkinny<ops::kFusedRows, kFinish, /*kFused=*/true>(a, StreamOf(ctx), op);
}

template <typename T>
void NormLinear(const ops::NormLinearParams& p, const OpContext& ctx) {
  constexpr const char* kOp = "norm_linear";
  if (p.num_rows <= 0 || p.n <= 0) return;
  FASTLLM_CHECK(!p.gated || p.bias == nullptr, "norm_linear: gated, with a bias");
  auto a = Args<T>(kOp, p.in, p.weight, p.bias, p.out, p.num_rows, p.n, p.k, {});
  a.next = Ahead(p.next, kAheadBytes);
  p.gated ? Launch<SkinnyFinish::kGated>(a, ctx, kOp) : Launch<SkinnyFinish::kStore>(a, ctx, kOp);
}

template <typename T>
void LinearAdd(const ops::LinearAddParams& p, const OpContext& ctx) {
  constexpr const char* kOp = "linear_add";
  if (p.num_rows <= 0 || p.n <= 0) return;
  auto a = Args<T>(kOp, {p.x, nullptr, 0.0f}, p.weight, p.bias, p.residual, p.num_rows, p.n, p.k, {p.gain, p.scaled});
  a.add = {static_cast<const T*>(p.gain), static_cast<T*>(p.scaled), p.squares};
  a.next = Ahead(p.next, kAheadBytes);
  Launch<SkinnyFinish::kAdd>(a, ctx, kOp);
}

template <typename T>
void NormQkv(const ops::NormQkvParams& p, const OpContext& ctx) {
  constexpr const char* kOp = "norm_qkv";
  const ops::RopeKvWriteParams& r = p.rope;
  const ops::KvCacheView& c = r.cache;
  if (r.num_tokens <= 0) return;
  FASTLLM_CHECK(r.rotary_dim == c.head_dim && !r.interleaved && r.q_norm_weight == nullptr &&
                    r.k_norm_weight == nullptr && c.head_dim % kSkinnyRowsOfWeight == 0,
                "norm_qkv: whole heads of a multiple of 16 rotate in the NeoX pairing and have no norms");
  const int32_t n = (r.num_q_heads + 2 * c.num_kv_heads) * c.head_dim;
  auto a = Args<T>(kOp, p.in, p.weight, p.bias, r.q, r.num_tokens, n, p.k, {});
  a.out_stride = r.q_stride;
  a.rope = {r.cos_sin,
            r.positions,
            r.slot_mapping,
            static_cast<T*>(c.k),
            static_cast<T*>(c.v),
            int64_t{c.num_blocks} * c.block_size,
            r.num_q_heads,
            c.num_kv_heads,
            c.head_dim,
            c.block_size};
  a.next = Ahead(p.next, kAheadOfAttention);
  Launch<SkinnyFinish::kRope>(a, ctx, kOp);
}

}  // namespace

// bfloat16 alone: h o gain may pass float16's largest number where the norm of h does not.
void RegisterFusedLinearOps(ops::OpTable& table) {
  AddOp(table, OpId::kNormLinear, DType::kBF16, "cuda.norm_linear.bf16", &NormLinear<bf16>);
  AddOp(table, OpId::kLinearAdd, DType::kBF16, "cuda.linear_add.bf16", &LinearAdd<bf16>);
  AddOp(table, OpId::kNormQkv, DType::kBF16, "cuda.norm_qkv.bf16", &NormQkv<bf16>);
}

}  // namespace fastllm::cuda
