// Instances of cuda/gemm/fp8_dense.cuh as candidates of fp8_bench.
#include "bench/ops/gemm/fp8_product.h"
#include "cuda/launch/fp8_dense.cuh"

namespace fastllm::gemm_bench {
namespace {

using cuda::DenseCut;

template <int kAtoms, int kTokens, int kCluster, bool kShareWeight, bool kGated, bool kPromote>
void AddOne(Fp8Variants& all, int least, int most, DenseCut cut, int band) {
  using Shape = cuda::DenseShape<kAtoms, kTokens, kCluster, kShareWeight, kGated>;
  const std::string name = std::string(kGated ? "gated w" : "dense w") + std::to_string(Shape::kRows) + " x" +
                           std::to_string(kTokens) + " c" + std::to_string(kCluster) + (kShareWeight ? "w" : "") +
                           (kPromote ? " p" : "") + (cut == DenseCut::kWhole ? " whole " : " line ") +
                           std::to_string(band);
  all.push_back({name, kGated, least, most, [=](const ops::DenseFp8LinearParams& p, cudaStream_t stream) {
                   cuda::LaunchFp8Dense<Shape, kPromote>(p, {cut, band}, stream, "dense");
                   return true;
                 }});
}

// Few rows: both cuts. Many: bands.
template <int kAtoms, int kTokens, int kCluster, bool kShareWeight, bool kPromote>
void Add(Fp8Variants& all, int least, int most) {
  AddOne<kAtoms, kTokens, kCluster, kShareWeight, false, kPromote>(all, least, most, DenseCut::kLine, 1);
  AddOne<kAtoms, kTokens, kCluster, kShareWeight, true, kPromote>(all, least, most, DenseCut::kLine, 1);
  AddOne<kAtoms, kTokens, kCluster, kShareWeight, false, kPromote>(all, least, most, DenseCut::kWhole, 4);
  if (most <= 512) return;
  AddOne<kAtoms, kTokens, kCluster, kShareWeight, false, kPromote>(all, 513, most, DenseCut::kLine, 4);
  AddOne<kAtoms, kTokens, kCluster, kShareWeight, true, kPromote>(all, 513, most, DenseCut::kWhole, 4);
}

}  // namespace

void AddFp8Dense(Fp8Variants& all) {
  Add<1, 32, 1, false, true>(all, 1, 32);
  Add<1, 64, 1, false, true>(all, 33, 64);
  Add<1, 64, 2, false, false>(all, 65, 256);
  Add<2, 64, 2, true, false>(all, 65, 256);
  Add<1, 128, 1, false, false>(all, 65, 256);
  Add<1, 128, 2, false, false>(all, 65, 1024);
  Add<1, 128, 2, true, false>(all, 129, 1024);
  Add<1, 128, 4, false, false>(all, 65, 512);
  Add<1, 192, 2, false, false>(all, 129, 1024);
  Add<1, 256, 1, false, false>(all, 129, 512);
  Add<1, 256, 2, false, false>(all, 129, 16384);
  Add<2, 128, 2, true, false>(all, 129, 16384);
  Add<2, 128, 1, true, false>(all, 129, 512);
}

}  // namespace fastllm::gemm_bench
