#include "bench/ops/gemm/own.cuh"

namespace fastllm::gemm_bench {

void AddOwnGated(Variants& all) {
  AddOwnFew<1, 32, 2, false, true>(all, 17, 32);
  AddOwnFew<1, 64, 1, false, true>(all, 33, 64);
  AddOwnFew<1, 64, 2, false, true>(all, 33, 128);
  AddOwnFew<1, 128, 2, false, true>(all, 65, 256);
  AddOwnFew<1, 256, 2, false, true>(all, 129, 512);
  AddOwnFew<2, 128, 2, true, true>(all, 129, 512);
  AddOwnMany<1, 256, 2, false, true>(all, 513);
  AddOwnMany<2, 128, 2, true, true>(all, 513);
}

}  // namespace fastllm::gemm_bench
