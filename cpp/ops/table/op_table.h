// OpTable: which function computes which op on which device and data type. Filled by explicit calls (Register...),
// resolved once when a layer is built; the hot path holds a plain function pointer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fastllm/status.h"
#include "ops/contract/common.h"

namespace fastllm::ops {

enum class OpId : uint8_t {
  kEmbedding,
  kGatherRows,
  kRmsNorm,
  kRope,
  kKvWrite,
  kPagedAttention,
  kSiluMul,
  kSample,
  kProcessLogits,
  kLogprobs,
  kLinear,
  kRopeKvWrite,
  kAttentionPlan,  // of backends that need one: contract/attention_plan.h
  kAttentionBound,
  kQuantLinear,
  kQuantEmbedding,
  kFeedTokens,
  kKeepTokens,
  kRandomFill,
  kLinearSiluMul,  // optional: linear and silu_mul in one
  kCountTokens,
  kQuantizeFp8,  // contract/fp8.h
  kFp8Linear,
  kRmsNormFp8,  // optional
  kSiluMulFp8,  // optional
  kHalfLinear,
  kHalfEmbedding,
  kNormLinear,  // optional, these three: contract/fused_linear.h
  kLinearAdd,
  kNormQkv,
  kQuantMlp,          // optional: contract/quant_linear.h
  kQuantMlpExact,     // likewise
  kDenseLinear,       // optional: contract/dense_linear.h
  kDenseFp8Linear,    // optional: contract/fp8.h
  kFp8LinearSiluMul,  // likewise
  kQuantPick,         // optional: contract/quant_linear.h
};
const char* OpName(OpId op);

enum class Device : uint8_t { kCpu, kCuda };

// Bits that an implementation supports or a caller requires.
enum Feature : uint32_t {
  kFeatureNone = 0,
  kFeatureInterleavedRope = 1u << 0,
  kFeatureGqa = 1u << 1,
  kFeatureSlidingWindow = 1u << 2,  // of paged_attention: window
  kFeatureSoftcap = 1u << 3,        // logit_softcap
  kFeatureAnyRows = 1u << 4,        // of linear_silu_mul: not only up to kSkinnyRows
  kFeatureAdds = 1u << 5,           // of linear and fp8_linear: adds
};

// Who wrote the kernels of an entry. Attention has more than one.
enum class Backend : uint8_t { kAny, kFastllm, kFlashInfer };
const char* BackendName(Backend backend);

using AnyFn = void (*)();

// One implementation. head_dim 0 = any. Of several that fit, the highest priority wins, then the first registered.
struct OpEntry {
  OpId op;
  Device device;
  DType dtype;
  int32_t head_dim = 0;
  uint32_t features = 0;
  int32_t priority = 0;
  const char* name = "";  // shown in logs and refusals, "cpu.rms_norm.f32"
  AnyFn fn = nullptr;
  Backend backend = Backend::kFastllm;
};

struct OpQuery {
  OpId op;
  Device device;
  DType dtype;
  int32_t head_dim = 0;
  uint32_t features = 0;
  Backend backend = Backend::kAny;
};

class OpTable {
 public:
  void Register(const OpEntry& entry) { entries_.push_back(entry); }

  // The best entry, or kUnimplemented with what was required, what candidates support and what they miss.
  Result<const OpEntry*> Find(const OpQuery& query) const;

  // Find() as a typed function pointer: Resolve<RmsNormFn>(query).
  template <typename Fn>
  Result<Fn> Resolve(const OpQuery& query) const {
    auto r = Find(query);
    if (!r.ok()) return r.status();
    return reinterpret_cast<Fn>((*r)->fn);
  }

  const std::vector<OpEntry>& entries() const { return entries_; }

 private:
  std::vector<OpEntry> entries_;
};

// Registers the CPU arm.
void RegisterCpuOps(OpTable& table);

// Registers the CUDA arm (cuda/launch). Only in builds with FASTLLM_CUDA; the pointers its functions take are device
// pointers, those of kAttentionPlan and kAttentionBound excepted.
void RegisterCudaOps(OpTable& table);

// The table of everything this build was compiled with. Built once, thread-safe.
const OpTable& BuiltinOps();

}  // namespace fastllm::ops
