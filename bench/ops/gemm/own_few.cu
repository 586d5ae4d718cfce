#include "bench/ops/gemm/own.cuh"

namespace fastllm::gemm_bench {

void AddOwnFew(Variants& all) {
  AddOwnFew<1, 32, 1, false, false>(all, 17, 32);
  AddOwnFew<1, 32, 2, false, false>(all, 17, 32);
  AddOwnFew<1, 64, 1, false, false>(all, 33, 64);
  AddOwnFew<1, 64, 2, false, false>(all, 33, 128);
  AddOwnFew<2, 64, 2, false, false>(all, 33, 64);
  AddOwnFew<1, 128, 1, false, false>(all, 65, 128);
  AddOwnFew<1, 128, 2, false, false>(all, 65, 256);
  AddOwnFew<1, 128, 4, false, false>(all, 65, 256);
}

}  // namespace fastllm::gemm_bench
