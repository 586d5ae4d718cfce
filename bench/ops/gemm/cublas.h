// cuBLASLt's algorithms as candidates. The library is opened at run time (libcublasLt.so.13).
#pragma once

#include "bench/ops/gemm/variant.h"

namespace fastllm::gemm_bench {

inline constexpr int kCublasChoices = 16;

// "cublas 0" is its first choice, as the runtime takes it; the others in its order, up to kCublasChoices. Throws
// std::runtime_error without the library.
void AddCublas(Variants& all);

// The algorithm that stands at `choice` where one asks about `ask_rows` rows, for the product; adds: to what out holds.
// An empty function where there are fewer. Throws std::runtime_error without the library.
Launch PrepareCublas(const Product& p, void* workspace, size_t bytes, int ask_rows, int choice, bool adds);

}  // namespace fastllm::gemm_bench
