#include "ops/cpu/half_linear.h"

namespace fastllm::ops::cpu {
namespace {

template <typename Fn>
void Add(OpTable& table, OpId op, CpuIsa isa, const char* name, Fn fn) {
  table.Register({op, Device::kCpu, DType::kF32, /*head_dim=*/0, kFeatureNone, /*priority=*/static_cast<int32_t>(isa),
                  name, reinterpret_cast<AnyFn>(fn)});
}

}  // namespace

void RegisterHalfOps(OpTable& table, CpuIsa isa) {
  Add(table, OpId::kHalfEmbedding, CpuIsa::kPlain, "cpu.half_embedding.f32", &HalfEmbedding);
  Add(table, OpId::kHalfLinear, CpuIsa::kPlain, "cpu.half_linear.f32", &HalfLinearOp<kPlainHalfKernels>);
#ifdef FASTLLM_OPS_X86
  if (isa >= CpuIsa::kAvx2) {
    Add(table, OpId::kHalfLinear, CpuIsa::kAvx2, "cpu.half_linear.f32.avx2", &HalfLinearOp<kAvx2HalfKernels>);
  }
  if (isa >= CpuIsa::kAvx512) {
    Add(table, OpId::kHalfLinear, CpuIsa::kAvx512, "cpu.half_linear.f32.avx512", &HalfLinearOp<kAvx512HalfKernels>);
  }
  if (isa >= CpuIsa::kAvx512Bf16) {
    Add(table, OpId::kHalfLinear, CpuIsa::kAvx512Bf16, "cpu.half_linear.f32.avx512_bf16",
        &HalfLinearOp<kAvx512Bf16HalfKernels>);
  }
  if (isa >= CpuIsa::kAmx) {
    Add(table, OpId::kHalfLinear, CpuIsa::kAmx, "cpu.half_linear.f32.amx", &HalfLinearOp<kAmxHalfKernels>);
  }
#else
  static_cast<void>(isa);
#endif
}

}  // namespace fastllm::ops::cpu
