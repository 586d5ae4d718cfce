// Matrix products through cuBLASLt, with plans that are made once per shape.
#pragma once

#include <ATen/core/Tensor.h>
#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "ops/contract/common.h"

namespace fastllm::runtime {

// out[m, n] (+)= x[m, k] weight[n, k]^T (+ bias[n]), all row-major and contiguous. Types of elements as CUDA has them.
struct MatmulShape {
  int32_t m = 0;
  int32_t n = 0;
  int32_t k = 0;
  cudaDataType_t in = CUDA_R_16BF;
  cudaDataType_t out = CUDA_R_16BF;
  bool bias = false;
  bool adds = false;    // to what out holds
  int32_t ask = 0;      // rows that cuBLASLt is asked about; 0: PlanRows(m)
  int32_t choice = 0;   // of its algorithms, in its order; the last where it has fewer
  bool scaled = false;  // x and weight are e4m3 with a float32 scale for each of their rows; n and k multiples of 16

  bool operator==(const MatmulShape&) const = default;
};

struct MatmulPointers {
  void* out = nullptr;
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;
  const float* x_scale = nullptr;       // [m], where scaled
  const float* weight_scale = nullptr;  // [n]
};

// The plans and the workspace of one stream. A product has the algorithm of the rows to ask about, or its own
// where that cannot take it. One thread at a time. Errors throw InternalError with the shape.
class MatmulPlans {
 public:
  explicit MatmulPlans(void* stream);
  ~MatmulPlans();
  MatmulPlans(const MatmulPlans&) = delete;
  MatmulPlans& operator=(const MatmulPlans&) = delete;

  void Run(const MatmulShape& shape, const MatmulPointers& pointers);

 private:
  struct Layouts;
  struct Plan;
  struct Hash {
    size_t operator()(const MatmulShape& s) const;
  };
  Plan& Find(const MatmulShape& shape, const MatmulPointers& pointers);
  cublasLtMatmulAlgo_t Choose(const Plan& plan, const MatmulShape& shape);
  cublasLtMatmulAlgo_t Ask(cublasLtMatmulDesc_t op, const MatmulShape& shape);

  void* stream_;
  cublasLtHandle_t handle_ = nullptr;
  at::Tensor workspace_;
  std::unordered_map<MatmulShape, std::unique_ptr<Plan>, Hash> plans_;
  std::unordered_map<MatmulShape, cublasLtMatmulAlgo_t, Hash> algorithms_;  // by what was asked about
};

// Throws InternalError for a product that adds (ops/contract/linear.h) to fewer rows than kLeastAddRows.
void CheckAddRows(const char* op, bool adds, int32_t rows);

// The plans of a stream, made at first use and kept until ReleaseCudaStream (runtime_ops.h). Any thread.
MatmulPlans& MatmulPlansOf(void* stream);

// Likewise the workspace of dense_linear and dense_fp8_linear.
void* DenseWorkspaceOf(void* stream);

}  // namespace fastllm::runtime
