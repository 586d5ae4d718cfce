// fp8_linear and fp8_linear_silu_mul on CUDA: kernels of our own where they are faster (fp8_choice.h), else cuBLASLt.
#include <cublasLt.h>

#include "ops/contract/fp8.h"
#include "ops/table/device.h"
#include "runtime/device/cublas_lt.h"
#include "runtime/device/fp8_choice.h"
#include "runtime/device/runtime_ops.h"

namespace fastllm::runtime {
namespace {

using ops::DType;

template <DType kType>
ops::Fp8LinearFn Stream() {
  static const ops::Fp8LinearFn fn = [] {
    const auto found = ops::BuiltinOps().Resolve<ops::Fp8LinearFn>({ops::OpId::kFp8Linear, ops::Device::kCuda, kType});
    return found.ok() ? *found : nullptr;
  }();
  return fn;
}

// The kernel for more rows; bfloat16 alone, null in builds without it and on other devices than it is for.
ops::DenseFp8LinearFn Dense() {
  static const ops::DenseFp8LinearFn fn = []() -> ops::DenseFp8LinearFn {
    if (ops::CudaDevice() == nullptr || ops::CudaDevice()->compute_capability() != 90) return nullptr;
    const auto found = ops::BuiltinOps().Resolve<ops::DenseFp8LinearFn>(
        {ops::OpId::kDenseFp8Linear, ops::Device::kCuda, DType::kBF16});
    return found.ok() ? *found : nullptr;
  }();
  return fn;
}

void RunDense(const ops::Fp8LinearParams& p, bool gated, const ops::OpContext& ctx) {
  Dense()({p, gated, DenseWorkspaceOf(ctx.stream)}, ctx);
}

void LinearSiluMul(const ops::Fp8LinearParams& p, const ops::OpContext& ctx) {
  if (p.num_rows > 0) RunDense(p, /*gated=*/true, ctx);
}

// cuBLASLt has the scales of rows for outputs of 16 bits; float32 is for parity tests, and stays with the kernel.
template <DType kType>
void Fp8Linear(const ops::Fp8LinearParams& p, const ops::OpContext& ctx) {
  if (p.num_rows <= 0 || p.n <= 0) return;
  CheckAddRows("fp8_linear", p.adds, p.num_rows);
  const bool dense = kType == DType::kBF16 && Dense() != nullptr;
  const Fp8Kernel kernel = kType == DType::kF32 ? Fp8Kernel::kStream : ChooseFp8Kernel(p.num_rows, p.n, p.k, dense);
  if (kernel == Fp8Kernel::kStream) return Stream<kType>()(p, ctx);
  if (kernel == Fp8Kernel::kDense) return RunDense(p, /*gated=*/false, ctx);
  MatmulShape s;
  s.m = p.num_rows;
  s.n = p.n;
  s.k = p.k;
  s.in = CUDA_R_8F_E4M3;
  s.out = kType == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
  s.bias = p.bias != nullptr;
  s.adds = p.adds;
  s.scaled = true;
  MatmulPlansOf(ctx.stream).Run(s, {p.out, p.x.q, p.weight.q, p.bias, p.x.scale, p.weight.scale});
}

template <DType kType>
void Add(ops::OpTable& table, const char* name) {
  if (Stream<kType>() == nullptr) return;
  // Float32 stays with the kernel, which does not add.
  const uint32_t features = kType == DType::kF32 ? ops::kFeatureNone : ops::kFeatureAdds;
  table.Register({ops::OpId::kFp8Linear, ops::Device::kCuda, kType, 0, features, /*priority=*/1, name,
                  reinterpret_cast<ops::AnyFn>(&Fp8Linear<kType>)});
}

}  // namespace

void RegisterCudaFp8Linear(ops::OpTable& table) {
  Add<DType::kF32>(table, "cuda.fp8_linear.f32.any");
  Add<DType::kF16>(table, "cuda.fp8_linear.f16.any");
  Add<DType::kBF16>(table, "cuda.fp8_linear.bf16.any");
  if (Dense() == nullptr) return;
  table.Register({ops::OpId::kFp8LinearSiluMul, ops::Device::kCuda, DType::kBF16, 0, 0, /*priority=*/1,
                  "cuda.fp8_linear_silu_mul.bf16", reinterpret_cast<ops::AnyFn>(&LinearSiluMul)});
}

}  // namespace fastllm::runtime
