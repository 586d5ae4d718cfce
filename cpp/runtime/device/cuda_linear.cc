// linear on CUDA: cuBLASLt, with plans per stream.
#include <c10/cuda/CUDACachingAllocator.h>

#include <map>
#include <memory>
#include <mutex>

#include "ops/contract/linear.h"
#include "runtime/device/cublas_lt.h"
#include "runtime/device/runtime_ops.h"

namespace fastllm::runtime {
namespace {

using ops::DType;

constexpr int32_t kSkinnyLimit = 16;  // measured: bench/RESULTS.md

struct AllPlans {
  std::mutex mutex;
  std::map<void*, std::unique_ptr<MatmulPlans>> by_stream;
};

AllPlans& Plans() {
  static AllPlans plans;
  return plans;
}

constexpr cudaDataType_t CudaType(DType t) {
  return t == DType::kF32 ? CUDA_R_32F : t == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
}

// The kernel of the CUDA arm for few rows; null where it has none.
template <DType kType>
ops::LinearFn Skinny() {
  static const ops::LinearFn fn = [] {
    const auto found = ops::BuiltinOps().Resolve<ops::LinearFn>({ops::OpId::kLinear, ops::Device::kCuda, kType});
    return found.ok() ? *found : nullptr;
  }();
  return fn;
}

// Few rows read the weight at the speed of the memory in a kernel of our own; cuBLAS does not.
bool IsSkinny(const ops::LinearParams& p) { return p.num_rows <= kSkinnyLimit && p.k % 32 == 0; }

template <DType kType>
void Linear(const ops::LinearParams& p, const ops::OpContext& ctx) {
  if (p.num_rows <= 0) return;
  if (const ops::LinearFn skinny = Skinny<kType>(); skinny != nullptr && IsSkinny(p)) return skinny(p, ctx);
  MatmulShape s;
  s.m = p.num_rows;
  s.n = p.n;
  s.k = p.k;
  s.in = CudaType(kType);
  s.out = p.out_f32 ? CUDA_R_32F : CudaType(kType);
  s.bias = p.bias != nullptr;
  MatmulPlansOf(ctx.stream).Run(s, {p.out, p.x, p.weight, p.bias});
}

template <DType kType>
void Add(ops::OpTable& table, const char* name) {
  table.Register({ops::OpId::kLinear, ops::Device::kCuda, kType, 0, 0, /*priority=*/1, name,
                  reinterpret_cast<ops::AnyFn>(&Linear<kType>)});
}

}  // namespace

MatmulPlans& MatmulPlansOf(void* stream) {
  AllPlans& plans = Plans();
  const std::lock_guard lock(plans.mutex);
  auto& entry = plans.by_stream[stream];
  if (entry == nullptr) entry = std::make_unique<MatmulPlans>(stream);
  return *entry;
}

void ReleaseCudaStream(void* stream) {
  {
    const std::lock_guard lock(Plans().mutex);
    Plans().by_stream.erase(stream);
  }
  c10::cuda::CUDACachingAllocator::emptyCache();
}

void RegisterCudaLinear(ops::OpTable& table) {
  Add<DType::kF32>(table, "cuda.linear.f32");
  Add<DType::kF16>(table, "cuda.linear.f16");
  Add<DType::kBF16>(table, "cuda.linear.bf16");
}

}  // namespace fastllm::runtime
