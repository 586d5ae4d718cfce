// The candidates of a dense bfloat16 product that gemm_bench compares (bench/ops/gemm_bench.cc).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fastllm::gemm_bench {

// out[rows, n] = x[rows, k] weight[n, k]^T, row-major bfloat16; gated: weight [2 n, k], out = silu(gate) * up.
struct Product {
  void* out = nullptr;
  const void* x = nullptr;
  const void* weight = nullptr;
  int rows = 0;
  int n = 0;
  int k = 0;
};

// Enqueues a product that was prepared.
using Launch = std::function<void(cudaStream_t)>;

struct Variant {
  std::string name;
  bool gated = false;
  int least_rows = 0;  // that it is meant for
  int most_rows = 0;
  // Makes ready what is the same for every launch; an empty function where the variant does not take the product.
  // workspace: zeroed, 64 MiB, of this product alone.
  std::function<Launch(const Product&, void* workspace, size_t bytes, cudaStream_t)> prepare;
};

using Variants = std::vector<Variant>;

}  // namespace fastllm::gemm_bench
