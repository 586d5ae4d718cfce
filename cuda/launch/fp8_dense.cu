// Launcher of dense_fp8_linear, which takes any number of rows; the runtime has cuBLASLt and the kernel for few beside
// it.
#include <string>

#include "core/base/check.h"
#include "cuda/launch/fp8_choice.h"
#include "cuda/launch/fp8_dense.cuh"
#include "cuda/launch/launch.h"

namespace fastllm::cuda {
namespace {

using ops::DType;
using ops::OpContext;
using ops::OpId;

constexpr const char* kOp = "dense_fp8_linear";

void LaunchGated(const ops::DenseFp8LinearParams& p, const Fp8DenseChoice& c, cudaStream_t stream) {
  switch (c.tile) {
    case Fp8DenseTile::k128x128: return LaunchFp8Dense<DenseShape<1, 128, 1, false, true>>(p, c.tiling, stream, kOp);
    case Fp8DenseTile::k128x128Pair: return LaunchFp8Dense<DenseShape<1, 128, 2, true, true>>(p, c.tiling, stream, kOp);
    default: return LaunchFp8Dense<DenseShape<1, 192, 2, false, true>>(p, c.tiling, stream, kOp);
  }
}

void LaunchPlain(const ops::DenseFp8LinearParams& p, const Fp8DenseChoice& c, cudaStream_t stream) {
  switch (c.tile) {
    case Fp8DenseTile::k128x128: return LaunchFp8Dense<DenseShape<1, 128, 1, false, false>>(p, c.tiling, stream, kOp);
    case Fp8DenseTile::k128x128Pair:
      return LaunchFp8Dense<DenseShape<1, 128, 2, true, false>>(p, c.tiling, stream, kOp);
    default: return LaunchFp8Dense<DenseShape<1, 192, 2, false, false>>(p, c.tiling, stream, kOp);
  }
}

[[maybe_unused]] void DenseFp8Linear(const ops::DenseFp8LinearParams& p, const OpContext& ctx) {
  const ops::Fp8LinearParams& l = p.linear;
  if (l.num_rows <= 0 || l.n <= 0) return;
  FASTLLM_CHECK(CurrentDevice().compute_capability == 90,
                std::string(kOp) + ": needs a device of compute capability 9.0, this one has " +
                    std::to_string(CurrentDevice().compute_capability / 10) + "." +
                    std::to_string(CurrentDevice().compute_capability % 10));
  const Fp8DenseChoice c = ChooseFp8Dense(l.num_rows, l.n, l.k, p.gated);
  p.gated ? LaunchGated(p, c, StreamOf(ctx)) : LaunchPlain(p, c, StreamOf(ctx));
}

}  // namespace

void RegisterDenseFp8LinearOps([[maybe_unused]] ops::OpTable& table) {
#ifdef FASTLLM_SM90A  // code for warpgroup products: cuda/CMakeLists.txt
  AddOp(table, OpId::kDenseFp8Linear, DType::kBF16, "cuda.dense_fp8_linear.bf16", &DenseFp8Linear);
#endif
}

}  // namespace fastllm::cuda
