// What the candidates of fp8_bench have in common.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <vector>

#include "ops/contract/fp8.h"

namespace fastllm::gemm_bench {

struct Fp8Variant {
  std::string name;
  bool gated = false;
  int least_rows = 0;  // that it is meant for
  int most_rows = 0;
  // Enqueues a product in bfloat16; false where the variant does not take it.
  std::function<bool(const ops::DenseFp8LinearParams&, cudaStream_t)> run;
};
using Fp8Variants = std::vector<Fp8Variant>;

void AddFp8Cublas(Fp8Variants& all);  // "cublas 0" is its first choice; throws std::runtime_error without the library
void AddFp8Stream(Fp8Variants& all);
void AddFp8Dense(Fp8Variants& all);

// count random codes, nearly normal with deviation `scale`, none a NaN.
void FillFp8(void* out, size_t count, uint64_t seed, float scale, cudaStream_t stream);

}  // namespace fastllm::gemm_bench
