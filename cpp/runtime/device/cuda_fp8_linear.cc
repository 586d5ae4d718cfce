// fp8_linear on CUDA: the kernel of our own for few rows, cuBLASLt for many.
#include <cublasLt.h>

#include "ops/contract/fp8.h"
#include "runtime/device/cublas_lt.h"
#include "runtime/device/runtime_ops.h"

namespace fastllm::runtime {
namespace {

using ops::DType;

constexpr int32_t kStreamRows = 128;  // measured: bench/RESULTS.md

template <DType kType>
ops::Fp8LinearFn Stream() {
  static const ops::Fp8LinearFn fn = [] {
    const auto found = ops::BuiltinOps().Resolve<ops::Fp8LinearFn>({ops::OpId::kFp8Linear, ops::Device::kCuda, kType});
    return found.ok() ? *found : nullptr;
  }();
  return fn;
}

// cuBLASLt has the scales of rows for outputs of 16 bits; float32 is for parity tests, and stays with the kernel.
template <DType kType>
void Fp8Linear(const ops::Fp8LinearParams& p, const ops::OpContext& ctx) {
  if (p.num_rows <= 0 || p.n <= 0) return;
  if (p.num_rows <= kStreamRows || kType == DType::kF32) return Stream<kType>()(p, ctx);
  MatmulShape s;
  s.m = p.num_rows;
  s.n = p.n;
  s.k = p.k;
  s.in = CUDA_R_8F_E4M3;
  s.out = kType == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
  s.bias = p.bias != nullptr;
  s.scaled = true;
  MatmulPlansOf(ctx.stream).Run(s, {p.out, p.x.q, p.weight.q, p.bias, p.x.scale, p.weight.scale});
}

template <DType kType>
void Add(ops::OpTable& table, const char* name) {
  if (Stream<kType>() == nullptr) return;
  table.Register({ops::OpId::kFp8Linear, ops::Device::kCuda, kType, 0, 0, /*priority=*/1, name,
                  reinterpret_cast<ops::AnyFn>(&Fp8Linear<kType>)});
}

}  // namespace

void RegisterCudaFp8Linear(ops::OpTable& table) {
  Add<DType::kF32>(table, "cuda.fp8_linear.f32.any");
  Add<DType::kF16>(table, "cuda.fp8_linear.f16.any");
  Add<DType::kBF16>(table, "cuda.fp8_linear.bf16.any");
}

}  // namespace fastllm::runtime
