// linear and linear_silu_mul on CUDA: kernels of our own where they are faster (linear_choice.h), else cuBLASLt, with
// plans and memory per stream.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <map>
#include <memory>
#include <mutex>

#include "ops/contract/dense_linear.h"
#include "ops/contract/linear.h"
#include "ops/table/device.h"
#include "runtime/device/cublas_lt.h"
#include "runtime/device/linear_choice.h"
#include "runtime/device/runtime_ops.h"

namespace fastllm::runtime {
namespace {

using ops::DType;

// What products need on one stream.
struct StreamProducts {
  explicit StreamProducts(void* stream) : plans(stream) {
    const auto bytes = at::TensorOptions().dtype(at::kByte).device(at::kCUDA);
    dense_workspace = at::empty({ops::kDenseWorkspaceBytes}, bytes);
    ops::CudaDevice()->Zero(dense_workspace.data_ptr(), ops::kDenseFlagBytes, stream);
  }

  MatmulPlans plans;
  at::Tensor dense_workspace;
};

struct AllProducts {
  std::mutex mutex;
  std::map<void*, std::unique_ptr<StreamProducts>> by_stream;
};

AllProducts& Products() {
  static AllProducts products;
  return products;
}

StreamProducts& ProductsOf(void* stream) {
  AllProducts& products = Products();
  const std::lock_guard lock(products.mutex);
  auto& entry = products.by_stream[stream];
  if (entry == nullptr) entry = std::make_unique<StreamProducts>(stream);
  return *entry;
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

// The kernel for more rows than few; bfloat16 alone, null in builds without it and on other devices than it is for.
ops::DenseLinearFn Dense() {
  static const ops::DenseLinearFn fn = []() -> ops::DenseLinearFn {
    if (ops::CudaDevice() == nullptr || ops::CudaDevice()->compute_capability() != 90) return nullptr;
    const auto found =
        ops::BuiltinOps().Resolve<ops::DenseLinearFn>({ops::OpId::kDenseLinear, ops::Device::kCuda, DType::kBF16});
    return found.ok() ? *found : nullptr;
  }();
  return fn;
}

void RunDense(const ops::LinearParams& p, bool gated, const ops::OpContext& ctx) {
  Dense()({p, gated, DenseWorkspaceOf(ctx.stream)}, ctx);
}

template <DType kType>
void Linear(const ops::LinearParams& p, const ops::OpContext& ctx) {
  if (p.num_rows <= 0) return;
  const LinearShape shape{p.num_rows, p.n, p.k};
  CheckAddRows("linear", p.adds, p.num_rows);
  if (const ops::LinearFn skinny = Skinny<kType>(); skinny != nullptr && IsSkinny(shape)) return skinny(p, ctx);
  if constexpr (kType == DType::kBF16) {
    if (!p.out_f32 && Dense() != nullptr && IsDense(shape)) return RunDense(p, /*gated=*/false, ctx);
  }
  MatmulShape s;
  s.m = p.num_rows;
  s.n = p.n;
  s.k = p.k;
  s.in = CudaType(kType);
  s.out = p.out_f32 ? CUDA_R_32F : CudaType(kType);
  s.bias = p.bias != nullptr;
  s.adds = p.adds;
  if (kType == DType::kBF16 && !p.out_f32) {
    const CublasChoice take = ChooseCublas(shape);
    s.ask = take.ask;
    s.choice = take.choice;
  }
  MatmulPlansOf(ctx.stream).Run(s, {p.out, p.x, p.weight, p.bias});
}

// Registered where Dense() is: takes any number of rows.
void LinearSiluMul(const ops::LinearParams& p, const ops::OpContext& ctx) {
  static const auto skinny =
      *ops::BuiltinOps().Resolve<ops::LinearFn>({ops::OpId::kLinearSiluMul, ops::Device::kCuda, DType::kBF16});
  if (p.num_rows <= 0) return;
  const LinearShape shape{p.num_rows, p.n, p.k};
  if (IsSkinny(shape) || !FitsDense(shape)) return skinny(p, ctx);
  RunDense(p, /*gated=*/true, ctx);
}

template <DType kType>
void Add(ops::OpTable& table, const char* name) {
  table.Register({ops::OpId::kLinear, ops::Device::kCuda, kType, 0, ops::kFeatureAdds, /*priority=*/1, name,
                  reinterpret_cast<ops::AnyFn>(&Linear<kType>)});
}

}  // namespace

MatmulPlans& MatmulPlansOf(void* stream) { return ProductsOf(stream).plans; }

void* DenseWorkspaceOf(void* stream) { return ProductsOf(stream).dense_workspace.data_ptr(); }

void ReleaseCudaStream(void* stream) {
  {
    const std::lock_guard lock(Products().mutex);
    Products().by_stream.erase(stream);
  }
  c10::cuda::CUDACachingAllocator::emptyCache();
}

void RegisterCudaLinear(ops::OpTable& table) {
  Add<DType::kF32>(table, "cuda.linear.f32");
  Add<DType::kF16>(table, "cuda.linear.f16");
  Add<DType::kBF16>(table, "cuda.linear.bf16");
  if (Dense() == nullptr) return;
  table.Register({ops::OpId::kLinearSiluMul, ops::Device::kCuda, DType::kBF16, 0, ops::kFeatureAnyRows, /*priority=*/1,
                  "cuda.linear_silu_mul.bf16.any", reinterpret_cast<ops::AnyFn>(&LinearSiluMul)});
}

}  // namespace fastllm::runtime
