// Instances of cuda/gemm/dense_stream.cuh as candidates.
#pragma once

#include "bench/ops/gemm/variant.h"
#include "cuda/launch/dense.cuh"

namespace fastllm::gemm_bench {

template <int kAtoms, int kTokens, int kCluster, bool kShareWeight, bool kGated>
void AddOwn(Variants& all, int least, int most, cuda::DenseCut cut, int band) {
  using Shape = cuda::DenseShape<kAtoms, kTokens, kCluster, kShareWeight, kGated>;
  const char* cuts[] = {"whole", "line"};
  const std::string name = std::string(kGated ? "own gated w" : "own w") + std::to_string(Shape::kRows) + " x" +
                           std::to_string(kTokens) + " c" + std::to_string(kCluster) + (kShareWeight ? "w " : " ") +
                           cuts[static_cast<int>(cut)] + (most > 512 ? " band " + std::to_string(band) : "");
  all.push_back(
      {name, kGated, least, most, [cut, band](const Product& p, void* workspace, size_t, cudaStream_t) -> Launch {
         const ops::DenseLinearParams d{{p.out, p.x, p.weight, nullptr, p.rows, p.n, p.k, false}, kGated, workspace};
         return [d, cut, band](cudaStream_t s) { cuda::LaunchDense<Shape>(d, {cut, band}, s, "own"); };
       }});
}

// Few rows: all ways to cut. Many: bands.
template <int kAtoms, int kTokens, int kCluster, bool kShareWeight, bool kGated>
void AddOwnFew(Variants& all, int least, int most) {
  for (const auto cut : {cuda::DenseCut::kWhole, cuda::DenseCut::kLine}) {
    AddOwn<kAtoms, kTokens, kCluster, kShareWeight, kGated>(all, least, most, cut, 1);
  }
}
template <int kAtoms, int kTokens, int kCluster, bool kShareWeight, bool kGated>
void AddOwnMany(Variants& all, int least) {
  for (const auto cut : {cuda::DenseCut::kWhole, cuda::DenseCut::kLine}) {
    for (const int band : {4, 8, 16}) {
      AddOwn<kAtoms, kTokens, kCluster, kShareWeight, kGated>(all, least, 8192, cut, band);
    }
  }
}

}  // namespace fastllm::gemm_bench
