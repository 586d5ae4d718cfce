#include "bench/ops/gemm/cutlass_gemm.cuh"

namespace fastllm::gemm_bench {

void AddCutlassFew32(Variants& all) {
  using Few = CutlassGemm<Tile<128, 32, 128>, Cluster<2, 1>, Cooperative, StreamK, true>;
  Few::Add(all, "w128 x32 k128 c2x1 stream-K", 17, 32, 0);
  Few::Add(all, "w128 x32 k128 c2x1 whole", 17, 32, 1);
  Few::Add(all, "w128 x32 k128 c2x1 split 2", 17, 32, 2);
  Few::Add(all, "w128 x32 k128 c2x1 split 4", 17, 32, 4);
}

}  // namespace fastllm::gemm_bench
