#include "bench/ops/gemm/cublas.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

namespace fastllm::gemm_bench {
namespace {

// The functions by name, so that the program links without the library.
struct Library {
  Library() {
    handle = dlopen("libcublasLt.so.13", RTLD_NOW);
    if (handle == nullptr) throw std::runtime_error(std::string("cuBLASLt: ") + dlerror());
    Find(create, "cublasLtCreate");
    Find(make_op, "cublasLtMatmulDescCreate");
    Find(set_op, "cublasLtMatmulDescSetAttribute");
    Find(make_layout, "cublasLtMatrixLayoutCreate");
    Find(make_preference, "cublasLtMatmulPreferenceCreate");
    Find(set_preference, "cublasLtMatmulPreferenceSetAttribute");
    Find(heuristic, "cublasLtMatmulAlgoGetHeuristic");
    Find(matmul, "cublasLtMatmul");
    Must(create(&lt));
  }
  static void Must(cublasStatus_t s) {
    if (s != CUBLAS_STATUS_SUCCESS) throw std::runtime_error("cuBLASLt: status " + std::to_string(s));
  }
  template <typename Fn>
  void Find(Fn& fn, const char* name) {
    fn = reinterpret_cast<Fn>(dlsym(handle, name));
    if (fn == nullptr) throw std::runtime_error(std::string("cuBLASLt has no ") + name);
  }

  void* handle = nullptr;
  cublasLtHandle_t lt = nullptr;
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtMatmulDescCreate) make_op;
  decltype(&cublasLtMatmulDescSetAttribute) set_op;
  decltype(&cublasLtMatrixLayoutCreate) make_layout;
  decltype(&cublasLtMatmulPreferenceCreate) make_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmul) matmul;
};

const Library& Lt() {
  static const Library library;
  return library;
}

struct Plan {
  cublasLtMatmulDesc_t op;
  cublasLtMatrixLayout_t weight, x, out;
  cublasLtMatmulAlgo_t algo;
};

}  // namespace

Launch PrepareCublas(const Product& p, void* workspace, size_t bytes, int ask_rows, int choice, bool adds) {
  const Library& lt = Lt();
  auto plan = std::make_shared<Plan>();
  const auto must = &Library::Must;
  must(lt.make_op(&plan->op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  must(lt.set_op(plan->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)));
  must(lt.make_layout(&plan->weight, CUDA_R_16BF, p.k, p.n, p.k));
  must(lt.make_layout(&plan->x, CUDA_R_16BF, p.k, p.rows, p.k));
  must(lt.make_layout(&plan->out, CUDA_R_16BF, p.n, p.rows, p.n));
  cublasLtMatmulPreference_t preference;
  must(lt.make_preference(&preference));
  must(lt.set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)));
  cublasLtMatrixLayout_t asked_x, asked_out;
  must(lt.make_layout(&asked_x, CUDA_R_16BF, p.k, ask_rows, p.k));
  must(lt.make_layout(&asked_out, CUDA_R_16BF, p.n, ask_rows, p.n));
  cublasLtMatmulHeuristicResult_t found[kCublasChoices] = {};
  int count = 0;
  must(lt.heuristic(lt.lt, plan->op, plan->weight, asked_x, asked_out, asked_out, preference, kCublasChoices, found,
                    &count));
  if (choice >= count) return {};
  plan->algo = found[choice].algo;
  return [plan, p, workspace, bytes, adds](cudaStream_t s) {
    const float one = 1.0f, before = adds ? 1.0f : 0.0f;
    Library::Must(Lt().matmul(Lt().lt, plan->op, &one, p.weight, plan->weight, p.x, plan->x, &before, p.out, plan->out,
                              p.out, plan->out, &plan->algo, workspace, bytes, s));
  };
}

void AddCublas(Variants& all) {
  for (int choice = 0; choice < kCublasChoices; ++choice) {
    all.push_back({"cublas " + std::to_string(choice), false, 1, 8192,
                   [choice](const Product& p, void* workspace, size_t bytes, cudaStream_t) {
                     return PrepareCublas(p, workspace, std::min<size_t>(bytes, 32 << 20), p.rows, choice, false);
                   }});
  }
}

}  // namespace fastllm::gemm_bench
