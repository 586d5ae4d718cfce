#include "ops/table/op_table.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>

#include "ops/contract/rms_norm.h"
#include "ops/cpu/isa.h"
#include "support.h"

namespace fastllm::ops {
namespace {

constexpr OpId kAllOps[] = {
    OpId::kEmbedding,       OpId::kGatherRows,    OpId::kRmsNorm,       OpId::kRope,           OpId::kKvWrite,
    OpId::kPagedAttention,  OpId::kSiluMul,       OpId::kSample,        OpId::kProcessLogits,  OpId::kLogprobs,
    OpId::kLinear,          OpId::kRopeKvWrite,   OpId::kAttentionPlan, OpId::kAttentionBound, OpId::kQuantLinear,
    OpId::kQuantEmbedding,  OpId::kFeedTokens,    OpId::kKeepTokens,    OpId::kRandomFill,     OpId::kLinearSiluMul,
    OpId::kCountTokens,     OpId::kQuantizeFp8,   OpId::kFp8Linear,     OpId::kRmsNormFp8,     OpId::kSiluMulFp8,
    OpId::kHalfLinear,      OpId::kHalfEmbedding, OpId::kNormLinear,    OpId::kLinearAdd,      OpId::kNormQkv,
    OpId::kQuantMlp,        OpId::kQuantMlpExact, OpId::kDenseLinear,   OpId::kQuantPick,      OpId::kDenseFp8Linear,
    OpId::kFp8LinearSiluMul};

// Attention on the CPU needs no plan, and the CPU fuses neither products nor roundings, but for the two that some arms
// have.
bool IsCpuOp(OpId op) {
  return op != OpId::kAttentionPlan && op != OpId::kAttentionBound && op != OpId::kLinearSiluMul &&
         op != OpId::kRmsNormFp8 && op != OpId::kSiluMulFp8 && op != OpId::kQuantMlp && op != OpId::kQuantMlpExact &&
         op != OpId::kDenseLinear && op != OpId::kDenseFp8Linear && op != OpId::kFp8LinearSiluMul;
}

void Fn1() {}
void Fn2() {}

TEST(OpTable, EveryOpHasACpuEntryInEveryArm) {
  for (const CpuIsa isa : ArmsOfThisMachine()) {
    OpTable table;
    RegisterCpuOps(table, isa);
    for (const OpId op : kAllOps) {
      if (!IsCpuOp(op)) continue;
      const auto r = table.Find({op, Device::kCpu, DType::kF32});
      ASSERT_TRUE(r.ok()) << CpuIsaName(isa) << ": " << r.status().ToString();
      EXPECT_NE((*r)->fn, nullptr) << (*r)->name;
    }
  }
}

TEST(OpTable, EveryOpHasAName) {
  std::set<std::string> names;
  for (const OpId op : kAllOps) names.insert(OpName(op));
  EXPECT_EQ(names.size(), std::size(kAllOps));
  EXPECT_EQ(names.count("unknown"), 0u);
  // The list above is complete: the value after the last one has no name.
  EXPECT_STREQ(OpName(static_cast<OpId>(std::size(kAllOps))), "unknown");
}

TEST(OpTable, EntryNamesAreUniqueAndSayTheirOp) {
  std::set<std::string> names;
  for (const OpEntry& e : BuiltinOps().entries()) {
    EXPECT_TRUE(names.insert(e.name).second) << e.name;
    const std::string device = e.device == Device::kCpu ? "cpu." : "cuda.";
    const std::string dtype = e.dtype == DType::kF32 ? ".f32" : e.dtype == DType::kF16 ? ".f16" : ".bf16";
    EXPECT_EQ(std::string(e.name).rfind(device + OpName(e.op) + dtype, 0), 0u) << e.name;
  }
}

TEST(OpTable, BestArmOfTheMachineWins) {
  OpTable best;
  RegisterCpuOps(best, DetectCpuIsa());
  const auto r = best.Find({OpId::kRmsNorm, Device::kCpu, DType::kF32});
  ASSERT_TRUE(r.ok());
  // VNNI adds a quantised linear and nothing else.
  EXPECT_EQ((*r)->priority, std::min(static_cast<int32_t>(DetectCpuIsa()), static_cast<int32_t>(CpuIsa::kAvx512)));
  OpTable plain;
  RegisterCpuOps(plain, CpuIsa::kPlain);
  EXPECT_STREQ(plain.Find({OpId::kRmsNorm, Device::kCpu, DType::kF32}).value()->name, "cpu.rms_norm.f32");
}

TEST(OpTable, TheEnvironmentForcesAnArm) {
  ASSERT_EQ(setenv("FASTLLM_CPU_ISA", "plain", 1), 0);
  OpTable plain;
  RegisterCpuOps(plain);
  EXPECT_STREQ(plain.Find({OpId::kRmsNorm, Device::kCpu, DType::kF32}).value()->name, "cpu.rms_norm.f32");
  ASSERT_EQ(setenv("FASTLLM_CPU_ISA", "avx1024", 1), 0);
  OpTable unknown;
  EXPECT_ANY_THROW(RegisterCpuOps(unknown));
  ASSERT_EQ(unsetenv("FASTLLM_CPU_ISA"), 0);
}

TEST(OpTable, HighestPriorityThenFirstRegistered) {
  OpTable t;
  t.Register({OpId::kRope, Device::kCpu, DType::kF32, 0, 0, 1, "first", Fn1});
  t.Register({OpId::kRope, Device::kCpu, DType::kF32, 0, 0, 1, "second", Fn2});
  EXPECT_STREQ(t.Find({OpId::kRope, Device::kCpu, DType::kF32}).value()->name, "first");
  t.Register({OpId::kRope, Device::kCpu, DType::kF32, 64, 0, 7, "dim64", Fn2});
  EXPECT_STREQ(t.Find({OpId::kRope, Device::kCpu, DType::kF32, 64}).value()->name, "dim64");
  EXPECT_STREQ(t.Find({OpId::kRope, Device::kCpu, DType::kF32, 128}).value()->name, "first");
  EXPECT_EQ(t.Resolve<AnyFn>({OpId::kRope, Device::kCpu, DType::kF32, 64}).value(), &Fn2);
}

TEST(OpTable, ABackendThatIsAskedForWinsOverPriority) {
  OpTable t;
  OpEntry other{OpId::kPagedAttention, Device::kCuda, DType::kBF16, 128, kFeatureGqa, 0, "other", Fn2};
  other.backend = Backend::kFlashInfer;
  t.Register(other);
  t.Register({OpId::kPagedAttention, Device::kCuda, DType::kBF16, 0, kFeatureGqa, 5, "own", Fn1});
  const auto find = [&t](Backend b, int32_t head_dim, uint32_t features) {
    return t.Find({OpId::kPagedAttention, Device::kCuda, DType::kBF16, head_dim, features, b});
  };
  EXPECT_STREQ(find(Backend::kAny, 128, 0).value()->name, "own");
  EXPECT_STREQ(find(Backend::kFastllm, 128, 0).value()->name, "own");
  EXPECT_STREQ(find(Backend::kFlashInfer, 128, 0).value()->name, "other");
  EXPECT_EQ(
      find(Backend::kFlashInfer, 64, kFeatureSoftcap).status().message(),
      "no implementation of op paged_attention: required device cuda, dtype bf16, head_dim 64, features softcap, "
      "backend flashinfer; other supports device cuda, dtype bf16, head_dim 128, features gqa, backend flashinfer "
      "(missing: head_dim 64, features softcap); own supports device cuda, dtype bf16, head_dim any, features gqa, "
      "backend fastllm (missing: features softcap, backend flashinfer)");
}

TEST(OpTable, MissingFeatureFallsBackToAnEntryThatHasIt) {
  OpTable t;
  t.Register({OpId::kRope, Device::kCpu, DType::kF32, 0, kFeatureInterleavedRope, 0, "both", Fn1});
  t.Register({OpId::kRope, Device::kCpu, DType::kF32, 0, 0, 9, "neox", Fn2});
  EXPECT_STREQ(t.Find({OpId::kRope, Device::kCpu, DType::kF32, 0, kFeatureInterleavedRope}).value()->name, "both");
}

TEST(OpTable, RefusalSaysRequiredSupportedAndMissing) {
  OpTable t;
  t.Register({OpId::kRope, Device::kCpu, DType::kF32, 64, 0, 0, "cpu.rope.f32", Fn1});
  const auto r = t.Find({OpId::kRope, Device::kCuda, DType::kBF16, 128, kFeatureInterleavedRope});
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(r.status().message(),
            "no implementation of op rope: required device cuda, dtype bf16, head_dim 128, features interleaved_rope; "
            "cpu.rope.f32 supports device cpu, dtype f32, head_dim 64, features none (missing: device cuda, dtype "
            "bf16, head_dim 128, features interleaved_rope)");
  const auto none = t.Find({OpId::kSample, Device::kCpu, DType::kF32});
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.status().message().find("no candidates"), std::string::npos);
}

}  // namespace
}  // namespace fastllm::ops
