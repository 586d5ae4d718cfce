// Launchers of the ops whose rows are independent: embedding, gather_rows, rms_norm, silu_mul.
#include <algorithm>
#include <string>

#include "core/base/check.h"
#include "cuda/activation/silu_mul.cuh"
#include "cuda/embedding/rows.cuh"
#include "cuda/launch/launch.h"
#include "cuda/launch/overlap.cuh"
#include "cuda/norm/rms_norm.cuh"
#include "ops/contract/embedding.h"
#include "ops/contract/rms_norm.h"
#include "ops/contract/silu_mul.h"

namespace fastllm::cuda {
namespace {

using ops::DType;
using ops::OpContext;
using ops::OpId;

template <typename Unit>
void LaunchCopyRows(void* out, const void* in, const int32_t* rows, int32_t first, int32_t num_in, int32_t num_rows,
                    int64_t bytes, const OpContext& ctx) {
  const auto units = static_cast<int32_t>(bytes / sizeof(Unit));
  // Few rows: spread each over blocks. Many: one block a row keeps four loads in flight per thread.
  const int32_t threads = std::clamp(CeilDiv(units, 32) * 32, 32, num_rows >= 512 ? 128 : 256);
  const int32_t slices = num_rows >= 512 ? 1 : std::min(CeilDiv(units, threads), 16);
  CopyRowsKernel<Unit><<<dim3(num_rows, slices), threads, 0, StreamOf(ctx)>>>(
      static_cast<Unit*>(out), static_cast<const Unit*>(in), rows, first, num_in, units);
}

// Rows from `first` on lie at `in`.
void CopyRows(void* out, const void* in, const int32_t* rows, int32_t first, int32_t num_in, int32_t num_rows,
              int64_t bytes, const OpContext& ctx, const char* op) {
  if (num_rows <= 0 || bytes <= 0) return;
  if (bytes % 16 == 0 && Aligned16(out) && Aligned16(in)) {
    LaunchCopyRows<uint4>(out, in, rows, first, num_in, num_rows, bytes, ctx);
  } else {
    LaunchCopyRows<uint16_t>(out, in, rows, first, num_in, num_rows, bytes, ctx);
  }
  CheckLaunch(op);
}

template <typename T>
void Embedding(const ops::EmbeddingParams& p, const OpContext& ctx) {
  CopyRows(p.out, p.table, p.ids, p.first_id, p.vocab, p.num_tokens, int64_t{p.hidden} * sizeof(T), ctx, "embedding");
}

template <typename T>
void GatherRows(const ops::GatherRowsParams& p, const OpContext& ctx) {
  CopyRows(p.out, p.in, p.rows, 0, INT32_MAX, p.num_rows, int64_t{p.hidden} * sizeof(T), ctx, "gather_rows");
}

template <typename T, int kPacks>
void LaunchRmsNorm(const ops::RmsNormParams& p, int32_t packs, int32_t threads, cudaStream_t stream) {
  auto* out = static_cast<T*>(p.out);
  const auto* x = static_cast<const T*>(p.x);
  auto* residual = static_cast<T*>(p.residual);
  const auto* weight = static_cast<const T*>(p.weight);
  const bool early = p.num_tokens >= kOverlappedRows;
  if (residual != nullptr) {
    LaunchRows(&RmsNormKernel<T, kPacks, true>, p.num_tokens, dim3(p.num_tokens), threads, stream, "rms_norm", out, x,
               residual, weight, packs, p.eps, early);
  } else {
    LaunchRows(&RmsNormKernel<T, kPacks, false>, p.num_tokens, dim3(p.num_tokens), threads, stream, "rms_norm", out, x,
               residual, weight, packs, p.eps, early);
  }
}

template <typename T>
void RmsNorm(const ops::RmsNormParams& p, const OpContext& ctx) {
  if (p.num_tokens <= 0 || p.hidden <= 0) return;
  const int32_t packs = p.hidden / Pack<T>::kSize;
  const bool aligned = p.hidden % Pack<T>::kSize == 0 && Aligned16(p.out) && Aligned16(p.x) && Aligned16(p.residual) &&
                       Aligned16(p.weight);
  if (!aligned || packs > 4 * 1024) {
    RmsNormScalarKernel<T><<<p.num_tokens, 256, 0, StreamOf(ctx)>>>(static_cast<T*>(p.out), static_cast<const T*>(p.x),
                                                                    static_cast<T*>(p.residual),
                                                                    static_cast<const T*>(p.weight), p.hidden, p.eps);
    CheckLaunch("rms_norm");
    return;
  }
  // Few rows: as many threads as packs, for latency. Many: more work per thread and more blocks per multiprocessor.
  const int32_t most = p.num_tokens < 4 * CurrentDevice().multiprocessors ? 1024 : 256;
  const int32_t per_thread = CeilDiv(packs, most);
  const auto threads_for = [packs](int32_t n) { return CeilDiv(CeilDiv(packs, n), 32) * 32; };
  if (per_thread <= 1) {
    LaunchRmsNorm<T, 1>(p, packs, threads_for(1), StreamOf(ctx));
  } else if (per_thread <= 2) {
    LaunchRmsNorm<T, 2>(p, packs, threads_for(2), StreamOf(ctx));
  } else {
    LaunchRmsNorm<T, 4>(p, packs, threads_for(4), StreamOf(ctx));
  }
  CheckLaunch("rms_norm");
}

template <typename T>
void SiluMul(const ops::SiluMulParams& p, const OpContext& ctx) {
  constexpr int32_t kThreads = 256;
  if (p.num_tokens <= 0 || p.n <= 0) return;
  auto* out = static_cast<T*>(p.out);
  const auto* gate_up = static_cast<const T*>(p.gate_up);
  const bool packed = p.n % Pack<T>::kSize == 0 && Aligned16(out) && Aligned16(gate_up);
  const int32_t packs = p.n / Pack<T>::kSize;
  // blockIdx.y holds at most 65535 tokens.
  for (int32_t first = 0; first < p.num_tokens; first += 65535) {
    const int32_t tokens = std::min(65535, p.num_tokens - first);
    T* o = out + static_cast<int64_t>(first) * p.n;
    const T* g = gate_up + static_cast<int64_t>(first) * 2 * p.n;
    if (packed && int64_t{tokens} * packs < int64_t{CurrentDevice().multiprocessors} * 2048) {
      SiluMulKernel<T, 1><<<dim3(CeilDiv(packs, kThreads), tokens), kThreads, 0, StreamOf(ctx)>>>(o, g, packs);
    } else if (packed) {
      LaunchRows(&SiluMulKernel<T, 2>, tokens, dim3(CeilDiv(packs, 2 * kThreads), tokens), kThreads, StreamOf(ctx),
                 "silu_mul", o, g, packs);
    } else {
      SiluMulScalarKernel<T><<<dim3(CeilDiv(p.n, kThreads), tokens), kThreads, 0, StreamOf(ctx)>>>(o, g, p.n);
    }
  }
  CheckLaunch("silu_mul");
}

struct Names {
  const char* embedding;
  const char* gather_rows;
  const char* rms_norm;
  const char* silu_mul;
};

template <typename T>
void RegisterFor(ops::OpTable& table, DType dtype, const Names& names) {
  AddOp(table, OpId::kEmbedding, dtype, names.embedding, &Embedding<T>);
  AddOp(table, OpId::kGatherRows, dtype, names.gather_rows, &GatherRows<T>);
  AddOp(table, OpId::kRmsNorm, dtype, names.rms_norm, &RmsNorm<T>);
  AddOp(table, OpId::kSiluMul, dtype, names.silu_mul, &SiluMul<T>);
}

}  // namespace

void RegisterRowOps(ops::OpTable& table) {
  RegisterFor<float>(table, DType::kF32,
                     {"cuda.embedding.f32", "cuda.gather_rows.f32", "cuda.rms_norm.f32", "cuda.silu_mul.f32"});
  RegisterFor<__half>(table, DType::kF16,
                      {"cuda.embedding.f16", "cuda.gather_rows.f16", "cuda.rms_norm.f16", "cuda.silu_mul.f16"});
  RegisterFor<bf16>(table, DType::kBF16,
                    {"cuda.embedding.bf16", "cuda.gather_rows.bf16", "cuda.rms_norm.bf16", "cuda.silu_mul.bf16"});
}

}  // namespace fastllm::cuda
