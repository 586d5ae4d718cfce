#include "bench/ops/gemm/cutlass_gemm.cuh"

namespace fastllm::gemm_bench {

void AddCutlassMany6(Variants& all) {
  using Many = CutlassGemm<Tile<128, 128, 64>, Cluster<2, 1>, Pingpong, Persistent, true>;
  for (const int swizzle : {1, 4, 8}) {
    for (const bool along_m : {false, true}) {
      Many::Add(all, "w-major 128x128 c2x1 Pingpong sw" + std::to_string(swizzle) + (along_m ? " M" : " N"), 256, 8192,
                1, swizzle, along_m);
    }
  }
}

}  // namespace fastllm::gemm_bench
