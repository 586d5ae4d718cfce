#include "bench/ops/gemm/cutlass_gemm.cuh"

namespace fastllm::gemm_bench {

void AddCutlassMany3(Variants& all) {
  using Many = CutlassGemm<Tile<256, 128, 64>, Cluster<1, 2>, Cooperative, Persistent, true>;
  for (const int swizzle : {1, 4, 8}) {
    for (const bool along_m : {false, true}) {
      Many::Add(all, "w-major 256x128 c1x2 Cooperative sw" + std::to_string(swizzle) + (along_m ? " M" : " N"), 256,
                8192, 1, swizzle, along_m);
    }
  }
}

}  // namespace fastllm::gemm_bench
