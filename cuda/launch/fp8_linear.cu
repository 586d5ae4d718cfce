// Launcher of fp8_linear by the kernel for few rows. It takes any number of rows, 128 at a time; for many, the runtime
// has cuBLASLt.
#include <string>

#include "core/base/check.h"
#include "cuda/gemm/fp8_stream.cuh"
#include "cuda/launch/fp8_choice.h"
#include "cuda/launch/launch.h"
#include "cuda/launch/overlap.cuh"
#include "cuda/launch/tensor_map.h"
#include "ops/contract/fp8.h"

namespace fastllm::cuda {
namespace {

using ops::DType;
using ops::OpContext;
using ops::OpId;

void Check(const ops::Fp8LinearParams& p) {
  FASTLLM_CHECK(CurrentDevice().compute_capability == 90,
                "fp8_linear: needs a device of compute capability 9.0, this one has " +
                    std::to_string(CurrentDevice().compute_capability / 10) + "." +
                    std::to_string(CurrentDevice().compute_capability % 10));
  FASTLLM_CHECK(p.n % ops::kFp8Multiple == 0 && p.k % ops::kFp8Multiple == 0 && Aligned16(p.x.q) &&
                    Aligned16(p.weight.q) && Aligned16(p.weight.scale) && Aligned16(p.out),
                "fp8_linear: " + std::to_string(p.k) + " to " + std::to_string(p.n) + ", need multiples of " +
                    std::to_string(ops::kFp8Multiple) + ", 16-byte aligned");
}

template <int kTokens>
void LaunchStream(Fp8StreamArgs& a, const ops::Fp8LinearParams& p, const Fp8Choice& c, const OpContext& ctx) {
  using Shape = Fp8StreamShape<kTokens>;
  // The copy engine takes pairs of bytes for elements.
  a.weight = MakeMatrixBoxes({p.weight.q, p.n, p.k / 2, kFp8Columns}, "fp8_linear");
  a.x = MakeMatrixBoxes({p.x.q, p.num_rows, p.k / 2, kTokens}, "fp8_linear");
  const auto kernel = &Fp8StreamKernel<kTokens>;
  AllowSharedMemory(reinterpret_cast<const void*>(kernel), Shape::kSharedBytes, "fp8_linear");
  const int32_t tiles = CeilDiv(p.n, kFp8Columns) * CeilDiv(p.num_rows, kTokens);
  LaunchCluster(kernel, dim3(c.splits, tiles), c.splits, kFp8Threads, Shape::kSharedBytes, StreamOf(ctx), "fp8_linear",
                a);
}

template <DType kType>
void Fp8Linear(const ops::Fp8LinearParams& p, const OpContext& ctx) {
  if (p.num_rows <= 0 || p.n <= 0) return;
  Check(p);
  Fp8StreamArgs a;
  a.out = p.out;
  a.x_scale = p.x.scale;
  a.weight_scale = p.weight.scale;
  a.bias = p.bias;
  a.m = p.num_rows;
  a.n = p.n;
  a.k = p.k;
  a.type = kType;
  const Fp8Choice c =
      ChooseFp8(p.num_rows, CeilDiv(p.n, kFp8Columns), CeilDiv(p.k, kFp8Depth), CurrentDevice().multiprocessors);
  a.early = p.num_rows >= kFp8EarlyRows;
  switch (c.tokens) {
    case 8: return LaunchStream<8>(a, p, c, ctx);
    case 16: return LaunchStream<16>(a, p, c, ctx);
    case 32: return LaunchStream<32>(a, p, c, ctx);
    case 64: return LaunchStream<64>(a, p, c, ctx);
    default: return LaunchStream<128>(a, p, c, ctx);
  }
}

}  // namespace

void RegisterFp8LinearOps([[maybe_unused]] ops::OpTable& table) {
#ifdef FASTLLM_SM90A  // code for warpgroup products: cuda/CMakeLists.txt
  AddOp(table, OpId::kFp8Linear, DType::kF32, "cuda.fp8_linear.f32", &Fp8Linear<DType::kF32>);
  AddOp(table, OpId::kFp8Linear, DType::kF16, "cuda.fp8_linear.f16", &Fp8Linear<DType::kF16>);
  AddOp(table, OpId::kFp8Linear, DType::kBF16, "cuda.fp8_linear.bf16", &Fp8Linear<DType::kBF16>);
#endif
}

}  // namespace fastllm::cuda
