// Launchers of linear and linear_silu_mul for few rows.
#include <string>

#include "core/base/check.h"
#include "cuda/launch/launch.h"
#include "cuda/launch/skinny.cuh"
#include "ops/contract/linear.h"

namespace fastllm::cuda {
namespace {

using ops::DType;
using ops::OpContext;
using ops::OpId;

template <typename T, typename Out, SkinnyFinish kFinish>
void Launch(const ops::LinearParams& p, const OpContext& ctx, const char* op) {
  SkinnyArgs<T, Out> a;
  a.out = static_cast<Out*>(p.out);
  a.x = static_cast<const T*>(p.x);
  a.weight = static_cast<const T*>(p.weight);
  a.bias = static_cast<const T*>(p.bias);
  a.out_stride = a.n = p.n;
  a.m = p.num_rows;
  a.k = p.k;
  LaunchSkinny<ops::kSkinnyRows, kFinish, /*kFused=*/false>(a, StreamOf(ctx), op);
}

template <typename T>
void SkinnyLinear(const ops::LinearParams& p, const OpContext& ctx) {
  if (p.num_rows <= 0 || p.n <= 0) return;
  if (p.out_f32) {
    Launch<T, float, SkinnyFinish::kStore>(p, ctx, "linear");
  } else {
    Launch<T, T, SkinnyFinish::kStore>(p, ctx, "linear");
  }
}

template <typename T>
void SkinnyLinearSiluMul(const ops::LinearParams& p, const OpContext& ctx) {
  if (p.num_rows <= 0 || p.n <= 0) return;
  FASTLLM_CHECK(p.bias == nullptr && !p.out_f32, "linear_silu_mul: no bias, and out is of the type of x");
  Launch<T, T, SkinnyFinish::kGated>(p, ctx, "linear_silu_mul");
}

}  // namespace

void RegisterSkinnyLinearOps(ops::OpTable& table) {
  AddOp(table, OpId::kLinear, DType::kF16, "cuda.linear.f16.skinny", &SkinnyLinear<__half>);
  AddOp(table, OpId::kLinear, DType::kBF16, "cuda.linear.bf16.skinny", &SkinnyLinear<bf16>);
  AddOp(table, OpId::kLinearSiluMul, DType::kF16, "cuda.linear_silu_mul.f16.skinny", &SkinnyLinearSiluMul<__half>);
  AddOp(table, OpId::kLinearSiluMul, DType::kBF16, "cuda.linear_silu_mul.bf16.skinny", &SkinnyLinearSiluMul<bf16>);
}

}  // namespace fastllm::cuda
