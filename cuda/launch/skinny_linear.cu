// Launchers of linear and linear_silu_mul for few rows.
#include <string>

#include "core/base/check.h"
#include "cuda/gemm/skinny.cuh"
#include "cuda/launch/launch.h"
#include "cuda/launch/overlap.cuh"
#include "ops/contract/linear.h"

namespace fastllm::cuda {
namespace {

using ops::DType;
using ops::OpContext;
using ops::OpId;

template <typename T, typename Out, bool kGated>
void Launch(const ops::LinearParams& p, const OpContext& ctx, const char* op) {
  FASTLLM_CHECK(p.num_rows <= ops::kSkinnyRows && p.k % kSkinnyChunk == 0 && Aligned16(p.x) && Aligned16(p.weight),
                std::string(op) + ": " + std::to_string(p.num_rows) + " rows of " + std::to_string(p.k) +
                    " elements; at most " + std::to_string(ops::kSkinnyRows) + " rows of a multiple of " +
                    std::to_string(kSkinnyChunk) + ", 16-byte aligned");
  SkinnyArgs<T, Out> a;
  a.out = static_cast<Out*>(p.out);
  a.x = static_cast<const T*>(p.x);
  a.weight = static_cast<const T*>(p.weight);
  a.bias = static_cast<const T*>(p.bias);
  a.m = p.num_rows;
  a.n = p.n;
  a.k = p.k;
  const int32_t blocks = CeilDiv(p.n, kGated ? kSkinnyRowsOfWeight / 2 : kSkinnyRowsOfWeight);
  const auto launch = [&](auto kernel) {
    LaunchOverlapped(kernel, dim3(blocks), kSkinnyWarps * 32, 0, StreamOf(ctx), op, a);
  };
  // Few blocks: the more on its way in each of them.
  const bool few = blocks <= 2 * CurrentDevice().multiprocessors;
  if (p.num_rows <= 8) {
    few ? launch(&SkinnyLinearKernel<T, Out, 1, kGated, 8, 2>) : launch(&SkinnyLinearKernel<T, Out, 1, kGated, 4, 3>);
  } else if (p.num_rows <= 16) {
    launch(&SkinnyLinearKernel<T, Out, 2, kGated, 4, 2>);
  } else {
    launch(&SkinnyLinearKernel<T, Out, 4, kGated, 2, 2>);
  }
}

template <typename T>
void SkinnyLinear(const ops::LinearParams& p, const OpContext& ctx) {
  if (p.num_rows <= 0 || p.n <= 0) return;
  if (p.out_f32) {
    Launch<T, float, false>(p, ctx, "linear");
  } else {
    Launch<T, T, false>(p, ctx, "linear");
  }
}

template <typename T>
void SkinnyLinearSiluMul(const ops::LinearParams& p, const OpContext& ctx) {
  if (p.num_rows <= 0 || p.n <= 0) return;
  FASTLLM_CHECK(p.bias == nullptr && !p.out_f32, "linear_silu_mul: no bias, and out is of the type of x");
  Launch<T, T, true>(p, ctx, "linear_silu_mul");
}

}  // namespace

void RegisterSkinnyLinearOps(ops::OpTable& table) {
  AddOp(table, OpId::kLinear, DType::kF16, "cuda.linear.f16.skinny", &SkinnyLinear<__half>);
  AddOp(table, OpId::kLinear, DType::kBF16, "cuda.linear.bf16.skinny", &SkinnyLinear<bf16>);
  AddOp(table, OpId::kLinearSiluMul, DType::kF16, "cuda.linear_silu_mul.f16.skinny", &SkinnyLinearSiluMul<__half>);
  AddOp(table, OpId::kLinearSiluMul, DType::kBF16, "cuda.linear_silu_mul.bf16.skinny", &SkinnyLinearSiluMul<bf16>);
}

}  // namespace fastllm::cuda
