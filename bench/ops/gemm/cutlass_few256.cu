#include "bench/ops/gemm/cutlass_gemm.cuh"

namespace fastllm::gemm_bench {

void AddCutlassFew256(Variants& all) {
  using Few = CutlassGemm<Tile<128, 256, 64>, Cluster<2, 1>, Cooperative, StreamK, true>;
  Few::Add(all, "w128 x256 k64 c2x1 stream-K", 129, 512, 0);
  Few::Add(all, "w128 x256 k64 c2x1 whole", 129, 512, 1);
  Few::Add(all, "w128 x256 k64 c2x1 split 2", 129, 512, 2);
  Few::Add(all, "w128 x256 k64 c2x1 split 4", 129, 512, 4);
}

}  // namespace fastllm::gemm_bench
