// The ops as the table holds them: each splits its work over threads and calls the kernels of one arm. Kernels k is
// bound at compile time by the templates at the end, so that an op is a plain function pointer.
#pragma once

#include "ops/contract/attention.h"
#include "ops/contract/embedding.h"
#include "ops/contract/feed.h"
#include "ops/contract/fp8.h"
#include "ops/contract/fused_linear.h"
#include "ops/contract/kv_cache.h"
#include "ops/contract/linear.h"
#include "ops/contract/logits.h"
#include "ops/contract/logprobs.h"
#include "ops/contract/quant_linear.h"
#include "ops/contract/random_fill.h"
#include "ops/contract/rms_norm.h"
#include "ops/contract/rope.h"
#include "ops/contract/rope_kv_write.h"
#include "ops/contract/sampling.h"
#include "ops/contract/silu_mul.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/quant_kernels.h"

namespace fastllm::ops::cpu {

// Copies: memcpy is vectorised already, so these two have one arm. An id outside the vocabulary throws InternalError.
void Embedding(const EmbeddingParams& p, const OpContext& ctx);
void GatherRows(const GatherRowsParams& p, const OpContext& ctx);
// A slot past the end of the cache throws InternalError.
void RunKvWrite(const Kernels& k, const KvWriteParams& p, const OpContext& ctx);
// One token's K or V, [num_kv_heads, head_dim], into its slot of `to`, which is cache.k or cache.v.
void WriteHeads(const Kernels& k, const KvCacheView& cache, const float* from, void* to, int64_t slot);
// A slot or a table wider than its limit throws InternalError.
void FeedTokens(const FeedTokensParams& p, const OpContext& ctx);
void KeepTokens(const KeepTokensParams& p, const OpContext& ctx);
void CountTokens(const CountTokensParams& p, const OpContext& ctx);
void RandomFill(const RandomFillParams& p, const OpContext& ctx);
// Float64 sums, one arm: the oracle of the CUDA arm. Throw InternalError for what the contract excludes.
void NormLinear(const NormLinearParams& p, const OpContext& ctx);
void LinearAdd(const LinearAddParams& p, const OpContext& ctx);
void NormQkv(const NormQkvParams& p, const OpContext& ctx);
void QuantizeFp8(const QuantizeFp8Params& p, const OpContext& ctx);

void RunRmsNorm(const Kernels& k, const RmsNormParams& p, const OpContext& ctx);
void RunRope(const Kernels& k, const RopeParams& p, const OpContext& ctx);
// Throws InternalError as RunKvWrite does.
void RunRopeKvWrite(const Kernels& k, const RopeKvWriteParams& p, const OpContext& ctx);
void RunSiluMul(const Kernels& k, const SiluMulParams& p, const OpContext& ctx);
void RunLinear(const Kernels& k, const LinearParams& p, const OpContext& ctx);
void RunFp8Linear(const Kernels& k, const Fp8LinearParams& p, const OpContext& ctx);
// Throws InternalError when the parts do not fit together.
void RunQuantLinear(const QuantKernels& k, const QuantLinearParams& p, const OpContext& ctx);
// Throws InternalError when the weight is not [n, k].
void RunQuantPick(const Kernels& k, const QuantKernels& q, const QuantPickParams& p, const OpContext& ctx);
// An id outside the vocabulary throws InternalError.
void QuantEmbedding(const QuantEmbeddingParams& p, const OpContext& ctx);
void RunAttention(const AttentionKernels& k, const PagedAttentionParams& p, const OpContext& ctx);
void RunSample(const Kernels& k, const SampleParams& p, const OpContext& ctx);
void RunProcessLogits(const Kernels& k, const ProcessLogitsParams& p, const OpContext& ctx);
void RunLogprobs(const Kernels& k, const LogprobsParams& p, const OpContext& ctx);

template <const Kernels& K>
void RmsNormOp(const RmsNormParams& p, const OpContext& ctx) {
  RunRmsNorm(K, p, ctx);
}
template <const Kernels& K>
void LinearOp(const LinearParams& p, const OpContext& ctx) {
  RunLinear(K, p, ctx);
}
template <const Kernels& K>
void Fp8LinearOp(const Fp8LinearParams& p, const OpContext& ctx) {
  RunFp8Linear(K, p, ctx);
}
template <const QuantKernels& K>
void QuantLinearOp(const QuantLinearParams& p, const OpContext& ctx) {
  RunQuantLinear(K, p, ctx);
}
template <const Kernels& K, const QuantKernels& Q>
void QuantPickOp(const QuantPickParams& p, const OpContext& ctx) {
  RunQuantPick(K, Q, p, ctx);
}
template <const Kernels& K>
void RopeOp(const RopeParams& p, const OpContext& ctx) {
  RunRope(K, p, ctx);
}
template <const Kernels& K>
void RopeKvWriteOp(const RopeKvWriteParams& p, const OpContext& ctx) {
  RunRopeKvWrite(K, p, ctx);
}
template <const Kernels& K>
void KvWriteOp(const KvWriteParams& p, const OpContext& ctx) {
  RunKvWrite(K, p, ctx);
}
template <const Kernels& K>
void SiluMulOp(const SiluMulParams& p, const OpContext& ctx) {
  RunSiluMul(K, p, ctx);
}
// B for a bfloat16 cache; a cache of 8 bits has the plain arm alone.
template <const Kernels& K, const AttentionKernels& B>
void AttentionOp(const PagedAttentionParams& p, const OpContext& ctx) {
  if (p.cache.dtype == DType::kF8E4M3) return RunAttention(kPlainKernels.attention, p, ctx);
  RunAttention(p.cache.dtype == DType::kBF16 ? B : K.attention, p, ctx);
}
template <const Kernels& K>
void AttentionOp(const PagedAttentionParams& p, const OpContext& ctx) {
  RunAttention(p.cache.dtype == DType::kF8E4M3 ? kPlainKernels.attention : K.attention, p, ctx);
}
template <const Kernels& K>
void SampleOp(const SampleParams& p, const OpContext& ctx) {
  RunSample(K, p, ctx);
}
template <const Kernels& K>
void ProcessLogitsOp(const ProcessLogitsParams& p, const OpContext& ctx) {
  RunProcessLogits(K, p, ctx);
}
template <const Kernels& K>
void LogprobsOp(const LogprobsParams& p, const OpContext& ctx) {
  RunLogprobs(K, p, ctx);
}

}  // namespace fastllm::ops::cpu
