// Launcher of fp8_linear by the kernel for few rows. It takes any number of rows, 128 at a time; for many, the runtime
// has cuBLASLt.
#include <string>

#include "core/base/check.h"
#include "cuda/launch/fp8_choice.h"
#include "cuda/launch/fp8_stream.cuh"
#include "cuda/launch/launch.h"

namespace fastllm::cuda {
namespace {

using ops::DType;
using ops::OpContext;
using ops::OpId;

[[maybe_unused]] void Check(const ops::Fp8LinearParams& p) {
  FASTLLM_CHECK(CurrentDevice().compute_capability == 90,
                "fp8_linear: needs a device of compute capability 9.0, this one has " +
                    std::to_string(CurrentDevice().compute_capability / 10) + "." +
                    std::to_string(CurrentDevice().compute_capability % 10));
  FASTLLM_CHECK(p.n % ops::kFp8Multiple == 0 && p.k % ops::kFp8Multiple == 0 && Aligned16(p.x.q) &&
                    Aligned16(p.weight.q) && Aligned16(p.weight.scale) && Aligned16(p.out),
                "fp8_linear: " + std::to_string(p.k) + " to " + std::to_string(p.n) + ", need multiples of " +
                    std::to_string(ops::kFp8Multiple) + ", 16-byte aligned");
}

template <DType kType>
[[maybe_unused]] void Fp8Linear(const ops::Fp8LinearParams& p, const OpContext& ctx) {
  if (p.num_rows <= 0 || p.n <= 0) return;
  Check(p);
  const Fp8Choice c =
      ChooseFp8(p.num_rows, CeilDiv(p.n, kFp8Columns), CeilDiv(p.k, kFp8Depth), CurrentDevice().multiprocessors);
  const bool early = p.num_rows >= kFp8EarlyRows;
  const cudaStream_t stream = StreamOf(ctx);
  constexpr const char* kOp = "fp8_linear";
  const bool two = c.blocks == 2;
  switch (c.tokens) {
    case 8: return LaunchFp8Stream<Fp8StreamShape<8, 2>>(p, kType, c.splits, early, stream, kOp);
    case 16:
      return two ? LaunchFp8Stream<Fp8StreamShape<16, 2>>(p, kType, c.splits, early, stream, kOp)
                 : LaunchFp8Stream<Fp8StreamShape<16, 1>>(p, kType, c.splits, early, stream, kOp);
    case 32:
      return two ? LaunchFp8Stream<Fp8StreamShape<32, 2>>(p, kType, c.splits, early, stream, kOp)
                 : LaunchFp8Stream<Fp8StreamShape<32, 1>>(p, kType, c.splits, early, stream, kOp);
    case 64:
      return two ? LaunchFp8Stream<Fp8StreamShape<64, 2>>(p, kType, c.splits, early, stream, kOp)
                 : LaunchFp8Stream<Fp8StreamShape<64, 1>>(p, kType, c.splits, early, stream, kOp);
    default: return LaunchFp8Stream<Fp8StreamShape<128, 1>>(p, kType, c.splits, early, stream, kOp);
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
