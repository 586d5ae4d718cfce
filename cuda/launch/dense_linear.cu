// Launcher of dense_linear, which takes any number of rows; the runtime has cuBLASLt beside it.
#include <string>

#include "core/base/check.h"
#include "cuda/launch/dense.cuh"
#include "cuda/launch/dense_choice.h"
#include "cuda/launch/few.cuh"
#include "cuda/launch/launch.h"
#include "ops/contract/dense_linear.h"

namespace fastllm::cuda {
namespace {

using ops::DType;
using ops::OpContext;
using ops::OpId;

constexpr const char* kOp = "dense_linear";

// Whether the kernel for few rows has taken the product.
bool LaunchFewRows(const ops::LinearParams& p, cudaStream_t stream) {
  constexpr int32_t kRows = 128;
  const int32_t splits =
      FewSplits(p.num_rows, CeilDiv(p.n, kRows), CeilDiv(p.k, kFewDepth), CurrentDevice().multiprocessors);
  if (splits == 0) return false;
  const int32_t ahead = FewAhead(p.n, p.k);
  if (p.num_rows <= 32) {
    LaunchFew<FewShape<kRows, 32>>(p, splits, ahead, stream, kOp);
  } else {
    LaunchFew<FewShape<kRows, kFewRows>>(p, splits, ahead, stream, kOp);
  }
  return true;
}

template <bool kGated>
void Launch(const ops::DenseLinearParams& p, const OpContext& ctx) {
  const DenseChoice c = ChooseDense(p.linear.num_rows);
  const cudaStream_t stream = StreamOf(ctx);
  if constexpr (!kGated) {
    if (LaunchFewRows(p.linear, stream)) return;
  }
  // Blocks that share x, where that was faster.
  constexpr int kPair = kGated ? 2 : 1;
  switch (c.tile) {
    case DenseTile::k128x32: return LaunchDense<DenseShape<1, 32, kPair, false, kGated>>(p, c.tiling, stream, kOp);
    case DenseTile::k128x64: return LaunchDense<DenseShape<1, 64, 1, false, kGated>>(p, c.tiling, stream, kOp);
    case DenseTile::k128x128: return LaunchDense<DenseShape<1, 128, kPair, false, kGated>>(p, c.tiling, stream, kOp);
    case DenseTile::k128x256: return LaunchDense<DenseShape<1, 256, 2, false, kGated>>(p, c.tiling, stream, kOp);
    case DenseTile::k256x128: return LaunchDense<DenseShape<2, 128, 2, true, kGated>>(p, c.tiling, stream, kOp);
  }
}

[[maybe_unused]] void DenseLinear(const ops::DenseLinearParams& p, const OpContext& ctx) {
  if (p.linear.num_rows <= 0 || p.linear.n <= 0) return;
  FASTLLM_CHECK(CurrentDevice().compute_capability == 90,
                "dense_linear: needs a device of compute capability 9.0, this one has " +
                    std::to_string(CurrentDevice().compute_capability / 10) + "." +
                    std::to_string(CurrentDevice().compute_capability % 10));
  p.gated ? Launch<true>(p, ctx) : Launch<false>(p, ctx);
}

}  // namespace

void RegisterDenseLinearOps([[maybe_unused]] ops::OpTable& table) {
#ifdef FASTLLM_SM90A  // code for warpgroup products: cuda/CMakeLists.txt
  AddOp(table, OpId::kDenseLinear, DType::kBF16, "cuda.dense_linear.bf16", &DenseLinear);
#endif
}

}  // namespace fastllm::cuda
