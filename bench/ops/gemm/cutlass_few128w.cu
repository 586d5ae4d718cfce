#include "bench/ops/gemm/cutlass_gemm.cuh"

namespace fastllm::gemm_bench {

void AddCutlassFew128W(Variants& all) {
  using Few = CutlassGemm<Tile<256, 128, 64>, Cluster<1, 2>, Cooperative, StreamK, true>;
  Few::Add(all, "w256 x128 k64 c1x2 stream-K", 129, 512, 0);
  Few::Add(all, "w256 x128 k64 c1x2 whole", 129, 512, 1);
  Few::Add(all, "w256 x128 k64 c1x2 split 2", 129, 512, 2);
  Few::Add(all, "w256 x128 k64 c1x2 split 4", 129, 512, 4);
}

}  // namespace fastllm::gemm_bench
