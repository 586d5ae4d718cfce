#include "bench/ops/gemm/cutlass_gemm.cuh"

namespace fastllm::gemm_bench {

void AddCutlassFew128(Variants& all) {
  using Few = CutlassGemm<Tile<128, 128, 64>, Cluster<2, 1>, Cooperative, StreamK, true>;
  Few::Add(all, "w128 x128 k64 c2x1 stream-K", 65, 256, 0);
  Few::Add(all, "w128 x128 k64 c2x1 whole", 65, 256, 1);
  Few::Add(all, "w128 x128 k64 c2x1 split 2", 65, 256, 2);
  Few::Add(all, "w128 x128 k64 c2x1 split 4", 65, 256, 4);
}

}  // namespace fastllm::gemm_bench
