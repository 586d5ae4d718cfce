#include "bench/ops/gemm/cutlass_gemm.cuh"

namespace fastllm::gemm_bench {

void AddCutlassFew64C(Variants& all) {
  using Few = CutlassGemm<Tile<128, 64, 128>, Cluster<2, 1>, Cooperative, StreamK, true>;
  Few::Add(all, "w128 x64 k128 c2x1 stream-K", 33, 128, 0);
  Few::Add(all, "w128 x64 k128 c2x1 whole", 33, 128, 1);
  Few::Add(all, "w128 x64 k128 c2x1 split 2", 33, 128, 2);
  Few::Add(all, "w128 x64 k128 c2x1 split 4", 33, 128, 4);
}

}  // namespace fastllm::gemm_bench
