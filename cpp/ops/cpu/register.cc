#include <algorithm>
#include <cstdlib>
#include <string>

#include "core/base/check.h"
#include "ops/cpu/amx.h"
#include "ops/cpu/drive.h"
#include "ops/cpu/half_linear.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/quant_mlp.h"
#include "ops/cpu/wide_linear.h"

namespace fastllm::ops {
namespace {

template <typename Fn>
void Add(OpTable& table, OpId op, CpuIsa isa, const char* name, Fn fn) {
  uint32_t features = kFeatureNone;
  if (op == OpId::kRope || op == OpId::kRopeKvWrite) features = kFeatureInterleavedRope;
  if (op == OpId::kPagedAttention) features = kFeatureGqa | kFeatureSlidingWindow | kFeatureSoftcap;
  table.Register({op, Device::kCpu, DType::kF32, /*head_dim=*/0, features, /*priority=*/static_cast<int32_t>(isa), name,
                  reinterpret_cast<AnyFn>(fn)});
}

// The ops that each arm has; the plain arm has the rest as well.
template <const cpu::Kernels& K>
void AddArm(OpTable& table, CpuIsa isa, const char* const (&names)[11]) {
  Add(table, OpId::kRmsNorm, isa, names[0], &cpu::RmsNormOp<K>);
  Add(table, OpId::kRope, isa, names[1], &cpu::RopeOp<K>);
  Add(table, OpId::kPagedAttention, isa, names[2], &cpu::AttentionOp<K>);
  Add(table, OpId::kSiluMul, isa, names[3], &cpu::SiluMulOp<K>);
  Add(table, OpId::kSample, isa, names[4], &cpu::SampleOp<K>);
  Add(table, OpId::kProcessLogits, isa, names[5], &cpu::ProcessLogitsOp<K>);
  Add(table, OpId::kLogprobs, isa, names[6], &cpu::LogprobsOp<K>);
  Add(table, OpId::kLinear, isa, names[7], &cpu::LinearOp<K>);
  Add(table, OpId::kRopeKvWrite, isa, names[8], &cpu::RopeKvWriteOp<K>);
  Add(table, OpId::kKvWrite, isa, names[9], &cpu::KvWriteOp<K>);
  Add(table, OpId::kFp8Linear, isa, names[10], &cpu::Fp8LinearOp<K>);
}

#ifdef FASTLLM_OPS_X86
// What computes on quantised weights, in the arms up to `isa`.
void AddQuantArms(OpTable& table, CpuIsa isa) {
  if (isa >= CpuIsa::kAvx2) {
    Add(table, OpId::kQuantLinear, CpuIsa::kAvx2, "cpu.quant_linear.f32.avx2",
        &cpu::QuantLinearOp<cpu::kAvx2QuantKernels>);
    Add(table, OpId::kQuantPick, CpuIsa::kAvx2, "cpu.quant_pick.f32.avx2",
        &cpu::QuantPickOp<cpu::kAvx2Kernels, cpu::kAvx2QuantKernels>);
  }
  if (isa >= CpuIsa::kAvx512Vnni) {
    Add(table, OpId::kQuantLinear, CpuIsa::kAvx512Vnni, "cpu.quant_linear.f32.avx512_vnni",
        &cpu::QuantLinearOp<cpu::kAvx512VnniQuantKernels>);
    Add(table, OpId::kQuantPick, CpuIsa::kAvx512Vnni, "cpu.quant_pick.f32.avx512_vnni",
        &cpu::QuantPickOp<cpu::kAvx512Kernels, cpu::kAvx512VnniQuantKernels>);
  }
  // AMX multiplies many rows so much faster than VNNI that it gains more by the product on its own.
  if (isa >= CpuIsa::kAvx512Vnni && isa < CpuIsa::kAmx) {
    Add(table, OpId::kQuantMlpExact, CpuIsa::kAvx512Vnni, "cpu.quant_mlp_exact.f32.avx512_vnni",
        &cpu::QuantMlpExactOp<cpu::kAvx512VnniQuantKernels>);
  }
  if (isa >= CpuIsa::kAmx) {
    Add(table, OpId::kQuantLinear, CpuIsa::kAmx, "cpu.quant_linear.f32.amx",
        &cpu::QuantLinearOp<cpu::kAmxQuantKernels>);
    Add(table, OpId::kQuantPick, CpuIsa::kAmx, "cpu.quant_pick.f32.amx",
        &cpu::QuantPickOp<cpu::kAvx512Kernels, cpu::kAmxQuantKernels>);
    Add(table, OpId::kQuantMlp, CpuIsa::kAmx, "cpu.quant_mlp.f32.amx", &cpu::QuantMlpOp<cpu::kAmxWideKernels>);
  }
}
#endif

}  // namespace

const char* CpuIsaName(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kPlain: return "plain";
    case CpuIsa::kAvx2: return "avx2";
    case CpuIsa::kAvx512: return "avx512";
    case CpuIsa::kAvx512Vnni: return "avx512_vnni";
    case CpuIsa::kAvx512Bf16: return "avx512_bf16";
    case CpuIsa::kAmx: return "amx";
  }
  return "unknown";
}

CpuIsa DetectCpuIsa() {
#ifdef FASTLLM_OPS_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool vnni = avx2 && avx512 && __builtin_cpu_supports("avx512vnni");
  const bool bf16 = vnni && __builtin_cpu_supports("avx512bf16");
  if (bf16 && cpu::AmxUsable()) return CpuIsa::kAmx;
  if (bf16) return CpuIsa::kAvx512Bf16;
  if (vnni) return CpuIsa::kAvx512Vnni;
  if (avx2 && avx512) return CpuIsa::kAvx512;
  if (avx2) return CpuIsa::kAvx2;
#endif
  return CpuIsa::kPlain;
}

void RegisterCpuOps(OpTable& table, CpuIsa max_isa) {
  Add(table, OpId::kEmbedding, CpuIsa::kPlain, "cpu.embedding.f32", &cpu::Embedding);
  Add(table, OpId::kGatherRows, CpuIsa::kPlain, "cpu.gather_rows.f32", &cpu::GatherRows);
  Add(table, OpId::kFeedTokens, CpuIsa::kPlain, "cpu.feed_tokens.f32", &cpu::FeedTokens);
  Add(table, OpId::kKeepTokens, CpuIsa::kPlain, "cpu.keep_tokens.f32", &cpu::KeepTokens);
  Add(table, OpId::kCountTokens, CpuIsa::kPlain, "cpu.count_tokens.f32", &cpu::CountTokens);
  Add(table, OpId::kRandomFill, CpuIsa::kPlain, "cpu.random_fill.f32", &cpu::RandomFill);
  Add(table, OpId::kNormLinear, CpuIsa::kPlain, "cpu.norm_linear.f32", &cpu::NormLinear);
  Add(table, OpId::kLinearAdd, CpuIsa::kPlain, "cpu.linear_add.f32", &cpu::LinearAdd);
  Add(table, OpId::kNormQkv, CpuIsa::kPlain, "cpu.norm_qkv.f32", &cpu::NormQkv);
  Add(table, OpId::kQuantizeFp8, CpuIsa::kPlain, "cpu.quantize_fp8.f32", &cpu::QuantizeFp8);
  Add(table, OpId::kQuantEmbedding, CpuIsa::kPlain, "cpu.quant_embedding.f32", &cpu::QuantEmbedding);
  Add(table, OpId::kQuantLinear, CpuIsa::kPlain, "cpu.quant_linear.f32", &cpu::QuantLinearOp<cpu::kPlainQuantKernels>);
  Add(table, OpId::kQuantPick, CpuIsa::kPlain, "cpu.quant_pick.f32",
      &cpu::QuantPickOp<cpu::kPlainKernels, cpu::kPlainQuantKernels>);
  AddArm<cpu::kPlainKernels>(table, CpuIsa::kPlain,
                             {"cpu.rms_norm.f32", "cpu.rope.f32", "cpu.paged_attention.f32", "cpu.silu_mul.f32",
                              "cpu.sample.f32", "cpu.process_logits.f32", "cpu.logprobs.f32", "cpu.linear.f32",
                              "cpu.rope_kv_write.f32", "cpu.kv_write.f32", "cpu.fp8_linear.f32"});
  const CpuIsa isa = std::min(max_isa, DetectCpuIsa());
  cpu::RegisterHalfOps(table, isa);
#ifdef FASTLLM_OPS_X86
  if (isa >= CpuIsa::kAvx2) {
    AddArm<cpu::kAvx2Kernels>(
        table, CpuIsa::kAvx2,
        {"cpu.rms_norm.f32.avx2", "cpu.rope.f32.avx2", "cpu.paged_attention.f32.avx2", "cpu.silu_mul.f32.avx2",
         "cpu.sample.f32.avx2", "cpu.process_logits.f32.avx2", "cpu.logprobs.f32.avx2", "cpu.linear.f32.avx2",
         "cpu.rope_kv_write.f32.avx2", "cpu.kv_write.f32.avx2", "cpu.fp8_linear.f32.avx2"});
  }
  AddQuantArms(table, isa);
  if (isa >= CpuIsa::kAvx512Bf16) {
    Add(table, OpId::kPagedAttention, CpuIsa::kAvx512Bf16, "cpu.paged_attention.f32.avx512_bf16",
        &cpu::AttentionOp<cpu::kAvx512Kernels, cpu::kAvx512Bf16AttentionKernels>);
  }
  if (isa >= CpuIsa::kAvx512) {
    AddArm<cpu::kAvx512Kernels>(
        table, CpuIsa::kAvx512,
        {"cpu.rms_norm.f32.avx512", "cpu.rope.f32.avx512", "cpu.paged_attention.f32.avx512", "cpu.silu_mul.f32.avx512",
         "cpu.sample.f32.avx512", "cpu.process_logits.f32.avx512", "cpu.logprobs.f32.avx512", "cpu.linear.f32.avx512",
         "cpu.rope_kv_write.f32.avx512", "cpu.kv_write.f32.avx512", "cpu.fp8_linear.f32.avx512"});
  }
#else
  static_cast<void>(isa);
#endif
}

void RegisterCpuOps(OpTable& table) {
  CpuIsa isa = DetectCpuIsa();
  if (const char* forced = std::getenv("FASTLLM_CPU_ISA"); forced != nullptr && *forced != '\0') {
    const std::string name = forced;
    bool known = false;
    for (const CpuIsa i :
         {CpuIsa::kPlain, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Vnni, CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
      if (name != CpuIsaName(i)) continue;
      known = true;
      isa = std::min(isa, i);
    }
    FASTLLM_CHECK(known,
                  "FASTLLM_CPU_ISA is '" + name + "'; known: plain, avx2, avx512, avx512_vnni, avx512_bf16, amx");
  }
  RegisterCpuOps(table, isa);
}

}  // namespace fastllm::ops
