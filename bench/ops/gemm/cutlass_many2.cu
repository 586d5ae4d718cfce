#include "bench/ops/gemm/cutlass_gemm.cuh"

namespace fastllm::gemm_bench {

void AddCutlassMany2(Variants& all) {
  using Many = CutlassGemm<Tile<256, 128, 64>, Cluster<2, 1>, Cooperative, Persistent, false>;
  for (const int swizzle : {1, 4, 8}) {
    for (const bool along_m : {false, true}) {
      Many::Add(all, "x-major 256x128 c2x1 Cooperative sw" + std::to_string(swizzle) + (along_m ? " M" : " N"), 256,
                8192, 1, swizzle, along_m);
    }
  }
}

}  // namespace fastllm::gemm_bench
