// paged_attention, attention_plan and attention_bound as the op table holds them.
#include "cuda/launch/attention.h"

#include <bit>
#include <string>

#include "core/base/check.h"
#include "cuda/attention/simple.cuh"
#include "cuda/common/types.cuh"

namespace fastllm::cuda {
namespace {

using ops::DType;
using ops::OpContext;
using ops::OpId;

ops::AttentionPlanSize Plan(const ops::AttentionPlanParams& p) {
  return MakePlan(p, PlanDeviceFor(p.head_dim, p.kv_dtype));
}

ops::AttentionBound Bound(const ops::AttentionBoundParams& p) {
  return PlanBound(p, PlanDeviceFor(p.head_dim, p.kv_dtype));
}

}  // namespace

AttentionShape CheckAttentionShape(const ops::PagedAttentionParams& p, int32_t head_dim) {
  const ops::KvCacheView& c = p.cache;
  FASTLLM_CHECK(c.head_dim == head_dim, "paged_attention: head_dim " + std::to_string(c.head_dim) +
                                            ", this instance has " + std::to_string(head_dim));
  FASTLLM_CHECK(c.num_kv_heads > 0 && p.num_q_heads % c.num_kv_heads == 0,
                "paged_attention: " + std::to_string(p.num_q_heads) + " query heads are no multiple of " +
                    std::to_string(c.num_kv_heads) + " KV heads");
  FASTLLM_CHECK(c.block_size >= kTileTokens && std::has_single_bit(static_cast<uint32_t>(c.block_size)),
                "paged_attention: block_size " + std::to_string(c.block_size) + ", need a power of two of at least " +
                    std::to_string(kTileTokens));
  FASTLLM_CHECK(p.plan != nullptr, "paged_attention: no plan");
  FASTLLM_CHECK(p.q_stride % 8 == 0 && Aligned16(p.q) && Aligned16(p.out) && Aligned16(c.k) && Aligned16(c.v),
                "paged_attention: q, out and the cache must be 16-byte aligned");
  return {head_dim, c.num_kv_heads, p.num_q_heads / c.num_kv_heads,
          std::countr_zero(static_cast<uint32_t>(c.block_size))};
}

namespace {

template <typename T, int kHeadDim>
void PagedAttention(const ops::PagedAttentionParams& p, const OpContext& ctx) {
  const AttentionShape s = CheckAttentionShape(p, kHeadDim);
  FASTLLM_CHECK((kHasSoftcap<T, kHeadDim>) || !(p.logit_softcap > 0.0f),
                "paged_attention: logit_softcap " + std::to_string(p.logit_softcap) + " with head_dim " +
                    std::to_string(kHeadDim) + "; there is code for bfloat16 with head_dim 128 and 256");
  if (p.cache.dtype == DType::kF8E4M3) {
    if (p.prefill_tiles > 0) LaunchPrefillFp8<T, kHeadDim>(p, s, StreamOf(ctx));
    if (p.decode_workers > 0) LaunchDecodeFp8<T, kHeadDim>(p, s, StreamOf(ctx));
  } else {
    if (p.prefill_tiles > 0) LaunchPrefill<T, kHeadDim>(p, s, StreamOf(ctx));
    if (p.decode_workers > 0) LaunchDecode<T, kHeadDim>(p, s, StreamOf(ctx));
  }
  CheckLaunch("paged_attention");
}

}  // namespace

template <int kHeadDim>
void OwnAttention(const ops::PagedAttentionParams& p, const OpContext& ctx) {
  PagedAttention<bf16, kHeadDim>(p, ctx);
}
template void OwnAttention<128>(const ops::PagedAttentionParams&, const OpContext&);

namespace {

void SimpleAttention(const ops::PagedAttentionParams& p, const OpContext& ctx) {
  FASTLLM_CHECK(p.cache.head_dim <= kSimpleMaxHeadDim, "paged_attention: head_dim " + std::to_string(p.cache.head_dim) +
                                                           " in float32, the limit is " +
                                                           std::to_string(kSimpleMaxHeadDim));
  if (p.num_tokens <= 0) return;
  const dim3 grid(p.num_tokens, p.num_q_heads);
  if (p.cache.dtype == DType::kF8E4M3) {
    SimpleAttentionKernel<fp8><<<grid, 32, 0, StreamOf(ctx)>>>(p);
  } else {
    SimpleAttentionKernel<float><<<grid, 32, 0, StreamOf(ctx)>>>(p);
  }
  CheckLaunch("paged_attention");
}

template <typename T, int kHeadDim>
void RegisterOne(ops::OpTable& table, DType dtype, const char* name) {
  constexpr uint32_t kFeatures =
      ops::kFeatureGqa | ops::kFeatureSlidingWindow | (kHasSoftcap<T, kHeadDim> ? ops::kFeatureSoftcap : 0u);
  AddOp(table, OpId::kPagedAttention, dtype, name, &PagedAttention<T, kHeadDim>, kFeatures, kHeadDim);
}

template <typename T>
void RegisterFor(ops::OpTable& table, DType dtype, const char* const (&names)[4]) {
  RegisterOne<T, 64>(table, dtype, names[0]);
  RegisterOne<T, 96>(table, dtype, names[1]);
  RegisterOne<T, 128>(table, dtype, names[2]);
  RegisterOne<T, 256>(table, dtype, names[3]);
}

void RegisterPlan(ops::OpTable& table, DType dtype, const char* plan, const char* bound) {
  AddOp(table, OpId::kAttentionPlan, dtype, plan, &Plan);
  AddOp(table, OpId::kAttentionBound, dtype, bound, &Bound);
}

}  // namespace

void RegisterAttentionOps(ops::OpTable& table) {
  RegisterFor<bf16>(table, DType::kBF16,
                    {"cuda.paged_attention.bf16.d64", "cuda.paged_attention.bf16.d96", "cuda.paged_attention.bf16.d128",
                     "cuda.paged_attention.bf16.d256"});
  RegisterFor<__half>(table, DType::kF16,
                      {"cuda.paged_attention.f16.d64", "cuda.paged_attention.f16.d96", "cuda.paged_attention.f16.d128",
                       "cuda.paged_attention.f16.d256"});
  AddOp(table, OpId::kPagedAttention, DType::kF32, "cuda.paged_attention.f32", &SimpleAttention,
        ops::kFeatureGqa | ops::kFeatureSlidingWindow | ops::kFeatureSoftcap);
  RegisterPlan(table, DType::kF32, "cuda.attention_plan.f32", "cuda.attention_bound.f32");
  RegisterPlan(table, DType::kF16, "cuda.attention_plan.f16", "cuda.attention_bound.f16");
  RegisterPlan(table, DType::kBF16, "cuda.attention_plan.bf16", "cuda.attention_bound.bf16");
}

}  // namespace fastllm::cuda
