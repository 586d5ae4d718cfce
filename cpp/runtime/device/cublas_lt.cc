#include "runtime/device/cublas_lt.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>

#include "core/base/check.h"
#include "ops/contract/linear.h"
#include "runtime/device/plan_rows.h"

namespace fastllm::runtime {
namespace {

constexpr int64_t kWorkspaceBytes = 32 << 20;  // what cuBLAS asks for on Hopper
constexpr int32_t kMaxChoices = 8;
constexpr size_t kMaxPlans = 8192;  // prefill steps come in any size; then all are made anew

std::string Text(const MatmulShape& s) {
  return "linear of " + std::to_string(s.m) + " rows, " + std::to_string(s.k) + " to " + std::to_string(s.n);
}

void Must(cublasStatus_t status, const MatmulShape& s, const char* call) {
  FASTLLM_CHECK(status == CUBLAS_STATUS_SUCCESS, Text(s) + ": " + call + ": " + cublasLtGetStatusString(status));
}

// The scales of a row of the weight (cuBLAS' A) and of x.
void SetScales(cublasLtMatmulDesc_t op, const MatmulShape& s, const MatmulPointers& p) {
  Must(
      cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p.weight_scale, sizeof(p.weight_scale)),
      s, "scales of the weight");
  Must(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p.x_scale, sizeof(p.x_scale)), s,
       "scales of the input");
}

void DescribeScales(cublasLtMatmulDesc_t op, const MatmulShape& s, const MatmulPointers& p) {
  const cublasLtMatmulMatrixScale_t by_row = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  Must(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &by_row, sizeof(by_row)), s, "scales");
  Must(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &by_row, sizeof(by_row)), s, "scales");
  const int8_t fast = 1;  // sums stay in the matrix units
  Must(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast)), s, "accumulation");
  SetScales(op, s, p);
}

}  // namespace

struct MatmulPlans::Layouts {
  explicit Layouts(const MatmulShape& s);
  ~Layouts();
  Layouts(const Layouts&) = delete;
  Layouts& operator=(const Layouts&) = delete;

  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, out = nullptr;
};

struct MatmulPlans::Plan {
  explicit Plan(const MatmulShape& s) : layouts(s) {
    Must(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F), s, "cublasLtMatmulDescCreate");
  }
  ~Plan() {
    if (op != nullptr) cublasLtMatmulDescDestroy(op);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  cublasLtMatmulDesc_t op = nullptr;
  Layouts layouts;
  cublasLtMatmulAlgo_t algo = {};
};

size_t MatmulPlans::Hash::operator()(const MatmulShape& s) const {
  uint64_t h = static_cast<uint64_t>(s.m) * 0x9e3779b97f4a7c15ull;
  h = (h ^ static_cast<uint64_t>(s.n)) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ static_cast<uint64_t>(s.k)) * 0x94d049bb133111ebull;
  return static_cast<size_t>(h ^ (h >> 31) ^ static_cast<uint64_t>(s.out * 2 + (s.bias ? 1 : 0)) ^
                             (s.scaled ? 0x94d049bb : 0) ^ (s.adds ? 0x133111eb : 0));
}

MatmulPlans::MatmulPlans(void* stream) : stream_(stream), handle_(at::cuda::getCurrentCUDABlasLtHandle()) {
  workspace_ = at::empty({kWorkspaceBytes}, at::TensorOptions().dtype(at::kByte).device(at::kCUDA));
}

MatmulPlans::~MatmulPlans() = default;

// The layouts of a product. cuBLAS is column-major: out^T [n, m] = weight [k, n]^T x^T [k, m].
MatmulPlans::Layouts::Layouts(const MatmulShape& s) {
  Must(cublasLtMatrixLayoutCreate(&weight, s.in, s.k, s.n, s.k), s, "layout of the weight");
  Must(cublasLtMatrixLayoutCreate(&x, s.in, s.k, s.m, s.k), s, "layout of the input");
  Must(cublasLtMatrixLayoutCreate(&out, s.out, s.n, s.m, s.n), s, "layout of the output");
}

MatmulPlans::Layouts::~Layouts() {
  if (out != nullptr) cublasLtMatrixLayoutDestroy(out);
  if (x != nullptr) cublasLtMatrixLayoutDestroy(x);
  if (weight != nullptr) cublasLtMatrixLayoutDestroy(weight);
}

cublasLtMatmulAlgo_t MatmulPlans::Ask(cublasLtMatmulDesc_t op, const MatmulShape& s) {
  const Layouts at(s);
  cublasLtMatmulPreference_t preference = nullptr;
  Must(cublasLtMatmulPreferenceCreate(&preference), s, "cublasLtMatmulPreferenceCreate");
  const size_t workspace = kWorkspaceBytes;
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                       sizeof(workspace));
  cublasLtMatmulHeuristicResult_t found[kMaxChoices] = {};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_, op, at.weight, at.x, at.out, at.out, preference,
                                                               s.choice + 1, found, &count);
  cublasLtMatmulPreferenceDestroy(preference);
  Must(status, s, "cublasLtMatmulAlgoGetHeuristic");
  FASTLLM_CHECK(count > 0, Text(s) + ": cuBLASLt has no algorithm");
  return found[std::min(s.choice, count - 1)].algo;
}

// That of the size that stands for this one, where it can take it.
cublasLtMatmulAlgo_t MatmulPlans::Choose(const Plan& plan, const MatmulShape& s) {
  MatmulShape asked = s;
  asked.m = s.ask > 0 ? s.ask : PlanRows(s.m);
  auto known = algorithms_.find(asked);
  if (known == algorithms_.end()) known = algorithms_.emplace(asked, Ask(plan.op, asked)).first;
  const Layouts& at = plan.layouts;
  cublasLtMatmulHeuristicResult_t found = {};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle_, plan.op, at.weight, at.x, at.out, at.out, &known->second, &found);
  const bool fits = status == CUBLAS_STATUS_SUCCESS && found.workspaceSize <= size_t{kWorkspaceBytes};
  return fits ? known->second : Ask(plan.op, s);
}

MatmulPlans::Plan& MatmulPlans::Find(const MatmulShape& s, const MatmulPointers& p) {
  FASTLLM_CHECK(s.choice >= 0 && s.choice < kMaxChoices,
                Text(s) + ": choice " + std::to_string(s.choice) + ", below " + std::to_string(kMaxChoices));
  if (const auto it = plans_.find(s); it != plans_.end()) return *it->second;
  if (plans_.size() >= kMaxPlans) plans_.clear();
  auto plan = std::make_unique<Plan>(s);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  Must(cublasLtMatmulDescSetAttribute(plan->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)), s,
       "transpose");
  if (s.bias) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    Must(cublasLtMatmulDescSetAttribute(plan->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)), s,
         "epilogue");
  }
  if (s.scaled) DescribeScales(plan->op, s, p);
  plan->algo = Choose(*plan, s);
  return *plans_.emplace(s, std::move(plan)).first->second;
}

void MatmulPlans::Run(const MatmulShape& s, const MatmulPointers& p) {
  Plan& plan = Find(s, p);
  if (s.scaled) SetScales(plan.op, s, p);
  if (s.bias) {
    Must(cublasLtMatmulDescSetAttribute(plan.op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p.bias, sizeof(p.bias)), s,
         "bias");
  }
  const float one = 1.0f, before = s.adds ? 1.0f : 0.0f;
  const Layouts& at = plan.layouts;
  Must(cublasLtMatmul(handle_, plan.op, &one, p.weight, at.weight, p.x, at.x, &before, p.out, at.out, p.out, at.out,
                      &plan.algo, workspace_.data_ptr(), kWorkspaceBytes, static_cast<cudaStream_t>(stream_)),
       s, "cublasLtMatmul");
}

void CheckAddRows(const char* op, bool adds, int32_t rows) {
  FASTLLM_CHECK(!adds || rows >= ops::kLeastAddRows, std::string(op) + " that adds: " + std::to_string(rows) +
                                                         " rows, " + std::to_string(ops::kLeastAddRows) + " at least");
}

}  // namespace fastllm::runtime
