#include "runtime/device/cublas_lt.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>

#include <limits>
#include <string>
#include <vector>

#include "core/base/check.h"

namespace fastllm::runtime {
namespace {

constexpr int64_t kWorkspaceBytes = 32 << 20;  // what cuBLAS asks for on Hopper
constexpr int kCandidates = 8;   // algorithms that are timed where timing pays
constexpr int kTimedRuns = 5;
constexpr size_t kMaxPlans = 8192;             // prefill steps come in any size; then all are made anew

std::string Text(const MatmulShape& s) {
  return "linear of " + std::to_string(s.m) + " rows, " + std::to_string(s.k) + " to " + std::to_string(s.n);
}

// Decode batches come again and again, in sizes of a ladder; the many sizes of prefill steps are not worth the time.
bool IsTimed(const MatmulShape& s) { return s.m % 16 == 0 && s.m <= 256; }

void Must(cublasStatus_t status, const MatmulShape& s, const char* call) {
  FASTLLM_CHECK(status == CUBLAS_STATUS_SUCCESS, Text(s) + ": " + call + ": " + cublasLtGetStatusString(status));
}

}  // namespace

struct MatmulPlans::Plan {
  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, out = nullptr;
  std::vector<cublasLtMatmulAlgo_t> algos;  // by cuBLASLt's estimate; once timed, the fastest alone

  ~Plan() {
    if (out != nullptr) cublasLtMatrixLayoutDestroy(out);
    if (x != nullptr) cublasLtMatrixLayoutDestroy(x);
    if (weight != nullptr) cublasLtMatrixLayoutDestroy(weight);
    if (op != nullptr) cublasLtMatmulDescDestroy(op);
  }
};

size_t MatmulPlans::Hash::operator()(const MatmulShape& s) const {
  uint64_t h = static_cast<uint64_t>(s.m) * 0x9e3779b97f4a7c15ull;
  h = (h ^ static_cast<uint64_t>(s.n)) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ static_cast<uint64_t>(s.k)) * 0x94d049bb133111ebull;
  return static_cast<size_t>(h ^ (h >> 31) ^ static_cast<uint64_t>(s.out * 2 + (s.bias ? 1 : 0)));
}

MatmulPlans::MatmulPlans(void* stream) : stream_(stream), handle_(at::cuda::getCurrentCUDABlasLtHandle()) {
  workspace_ = at::empty({kWorkspaceBytes}, at::TensorOptions().dtype(at::kByte).device(at::kCUDA));
}

MatmulPlans::~MatmulPlans() = default;

MatmulPlans::Plan& MatmulPlans::Find(const MatmulShape& s) {
  if (const auto it = plans_.find(s); it != plans_.end()) return *it->second;
  if (plans_.size() >= kMaxPlans) plans_.clear();
  auto plan = std::make_unique<Plan>();
  // cuBLAS is column-major: out^T [n, m] = weight [k, n]^T x^T [k, m].
  Must(cublasLtMatmulDescCreate(&plan->op, CUBLAS_COMPUTE_32F, CUDA_R_32F), s, "cublasLtMatmulDescCreate");
  const cublasOperation_t transposed = CUBLAS_OP_T;
  Must(cublasLtMatmulDescSetAttribute(plan->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)), s,
       "transpose");
  if (s.bias) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    Must(cublasLtMatmulDescSetAttribute(plan->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)), s,
         "epilogue");
  }
  Must(cublasLtMatrixLayoutCreate(&plan->weight, s.in, s.k, s.n, s.k), s, "layout of the weight");
  Must(cublasLtMatrixLayoutCreate(&plan->x, s.in, s.k, s.m, s.k), s, "layout of the input");
  Must(cublasLtMatrixLayoutCreate(&plan->out, s.out, s.n, s.m, s.n), s, "layout of the output");
  cublasLtMatmulPreference_t preference = nullptr;
  Must(cublasLtMatmulPreferenceCreate(&preference), s, "cublasLtMatmulPreferenceCreate");
  const size_t workspace = kWorkspaceBytes;
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                       sizeof(workspace));
  cublasLtMatmulHeuristicResult_t found[kCandidates] = {};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, plan->op, plan->weight, plan->x, plan->out, plan->out, preference,
                                     IsTimed(s) ? kCandidates : 1, found, &count);
  cublasLtMatmulPreferenceDestroy(preference);
  Must(status, s, "cublasLtMatmulAlgoGetHeuristic");
  FASTLLM_CHECK(count >= 1, Text(s) + ": cuBLASLt has no algorithm");
  for (int i = 0; i < count; ++i) plan->algos.push_back(found[i].algo);
  return *plans_.emplace(s, std::move(plan)).first->second;
}

// Runs every candidate a few times and keeps the fastest. The results are all the same product.
void MatmulPlans::Time(const MatmulShape& s, const MatmulPointers& p, Plan& plan) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  const auto ok = [&s](cudaError_t e) { FASTLLM_CHECK(e == cudaSuccess, Text(s) + ": " + cudaGetErrorString(e)); };
  ok(cudaStreamIsCapturing(stream, &capture));
  if (capture != cudaStreamCaptureStatusNone) return;  // timed when it next runs by itself
  cudaEvent_t begin = nullptr, end = nullptr;
  ok(cudaEventCreate(&begin));
  ok(cudaEventCreate(&end));
  size_t best = 0;
  float best_ms = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < plan.algos.size(); ++i) {
    bool usable = Multiply(p, plan, plan.algos[i]) == CUBLAS_STATUS_SUCCESS;
    ok(cudaEventRecord(begin, stream));
    for (int run = 0; run < kTimedRuns && usable; ++run) {
      usable = Multiply(p, plan, plan.algos[i]) == CUBLAS_STATUS_SUCCESS;
    }
    ok(cudaEventRecord(end, stream));
    ok(cudaEventSynchronize(end));
    float ms = 0.0f;
    ok(cudaEventElapsedTime(&ms, begin, end));
    if (usable && ms < best_ms) {
      best_ms = ms;
      best = i;
    }
  }
  ok(cudaEventDestroy(begin));
  ok(cudaEventDestroy(end));
  plan.algos = {plan.algos[best]};
}

cublasStatus_t MatmulPlans::Multiply(const MatmulPointers& p, const Plan& plan, const cublasLtMatmulAlgo_t& algo) {
  const float one = 1.0f, zero = 0.0f;
  return cublasLtMatmul(handle_, plan.op, &one, p.weight, plan.weight, p.x, plan.x, &zero, p.out, plan.out, p.out,
                        plan.out, &algo, workspace_.data_ptr(), kWorkspaceBytes, static_cast<cudaStream_t>(stream_));
}

void MatmulPlans::Run(const MatmulShape& s, const MatmulPointers& p) {
  Plan& plan = Find(s);
  if (s.bias) {
    Must(cublasLtMatmulDescSetAttribute(plan.op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p.bias, sizeof(p.bias)), s,
         "bias");
  }
  if (plan.algos.size() > 1) Time(s, p, plan);
  Must(Multiply(p, plan, plan.algos[0]), s, "cublasLtMatmul");
}

}  // namespace fastllm::runtime
