// cuBLASLt's algorithms as candidates of fp8_bench. The library is opened at run time.
#include <cublasLt.h>
#include <dlfcn.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <tuple>

#include "bench/ops/gemm/fp8_product.h"
#include "tests/cuda/support.h"

namespace fastllm::gemm_bench {
namespace {

constexpr int kChoices = 8;
constexpr size_t kWorkspace = 32 << 20;

void Must(cublasStatus_t s) {
  if (s != CUBLAS_STATUS_SUCCESS) throw std::runtime_error("cuBLASLt: status " + std::to_string(s));
}

struct Plan {
  cublasLtMatmulDesc_t op;
  cublasLtMatrixLayout_t weight, x, out;
  cublasLtMatmulHeuristicResult_t found[kChoices];
  int count = 0;
};

class Library {
 public:
  Library() : workspace_(kWorkspace) {
    handle_ = dlopen("libcublasLt.so.13", RTLD_NOW);
    if (handle_ == nullptr) throw std::runtime_error(std::string("cuBLASLt: ") + dlerror());
    Must(Find(&cublasLtCreate, "cublasLtCreate")(&lt_));
    set_op_ = Find(&cublasLtMatmulDescSetAttribute, "cublasLtMatmulDescSetAttribute");
    matmul_ = Find(&cublasLtMatmul, "cublasLtMatmul");
  }
  bool Run(const ops::Fp8LinearParams& p, int choice, cudaStream_t stream) {
    std::unique_ptr<Plan>& plan = plans_[{p.num_rows, p.n, p.k}];
    if (plan == nullptr) plan = Make(p);
    if (choice >= plan->count) return false;
    SetScales(plan->op, p);
    const float one = 1.0f, zero = 0.0f;
    Must(matmul_(lt_, plan->op, &one, p.weight.q, plan->weight, p.x.q, plan->x, &zero, p.out, plan->out, p.out,
                 plan->out, &plan->found[choice].algo, workspace_.get(), kWorkspace, stream));
    return true;
  }

 private:
  template <typename Fn>
  Fn* Find(Fn*, const char* name) {
    void* fn = dlsym(handle_, name);
    if (fn == nullptr) throw std::runtime_error(std::string("cuBLASLt has no ") + name);
    return reinterpret_cast<Fn*>(fn);
  }
  void SetScales(cublasLtMatmulDesc_t op, const ops::Fp8LinearParams& p) {
    Must(set_op_(op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p.weight.scale, sizeof(p.weight.scale)));
    Must(set_op_(op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p.x.scale, sizeof(p.x.scale)));
  }
  std::unique_ptr<Plan> Make(const ops::Fp8LinearParams& p) {
    auto plan = std::make_unique<Plan>();
    Must(Find(&cublasLtMatmulDescCreate, "cublasLtMatmulDescCreate")(&plan->op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cublasLtMatmulMatrixScale_t by_row = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    const int8_t fast = 1;
    Must(set_op_(plan->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)));
    Must(set_op_(plan->op, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &by_row, sizeof(by_row)));
    Must(set_op_(plan->op, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &by_row, sizeof(by_row)));
    Must(set_op_(plan->op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast)));
    SetScales(plan->op, p);
    const auto layout = Find(&cublasLtMatrixLayoutCreate, "cublasLtMatrixLayoutCreate");
    Must(layout(&plan->weight, CUDA_R_8F_E4M3, p.k, p.n, p.k));
    Must(layout(&plan->x, CUDA_R_8F_E4M3, p.k, p.num_rows, p.k));
    Must(layout(&plan->out, CUDA_R_16BF, p.n, p.num_rows, p.n));
    cublasLtMatmulPreference_t preference;
    Must(Find(&cublasLtMatmulPreferenceCreate, "cublasLtMatmulPreferenceCreate")(&preference));
    const size_t bytes = kWorkspace;
    Must(Find(&cublasLtMatmulPreferenceSetAttribute, "cublasLtMatmulPreferenceSetAttribute")(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)));
    Must(Find(&cublasLtMatmulAlgoGetHeuristic, "cublasLtMatmulAlgoGetHeuristic")(
        lt_, plan->op, plan->weight, plan->x, plan->out, plan->out, preference, kChoices, plan->found, &plan->count));
    return plan;
  }

  void* handle_ = nullptr;
  cublasLtHandle_t lt_ = nullptr;
  cuda_check::Buffer workspace_;
  decltype(&cublasLtMatmulDescSetAttribute) set_op_ = nullptr;
  decltype(&cublasLtMatmul) matmul_ = nullptr;
  std::map<std::tuple<int, int, int>, std::unique_ptr<Plan>> plans_;
};

}  // namespace

void AddFp8Cublas(Fp8Variants& all) {
  const auto library = std::make_shared<Library>();
  for (int choice = 0; choice < kChoices; ++choice) {
    all.push_back({"cublas " + std::to_string(choice), false, 17, 16384,
                   [library, choice](const ops::DenseFp8LinearParams& p, cudaStream_t stream) {
                     return library->Run(p.linear, choice, stream);
                   }});
  }
}

}  // namespace fastllm::gemm_bench
