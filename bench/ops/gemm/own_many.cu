#include "bench/ops/gemm/own.cuh"

namespace fastllm::gemm_bench {

void AddOwnMany(Variants& all) {
  AddOwnFew<1, 256, 2, false, false>(all, 129, 512);
  AddOwnFew<1, 256, 4, false, false>(all, 129, 512);
  AddOwnFew<2, 128, 2, true, false>(all, 129, 512);
  AddOwnMany<1, 256, 2, false, false>(all, 513);
  AddOwnMany<2, 128, 2, true, false>(all, 513);
  AddOwnMany<2, 128, 2, false, false>(all, 513);
}

}  // namespace fastllm::gemm_bench
