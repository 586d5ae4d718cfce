#include "ops/table/op_table.h"

namespace fastllm::ops {
namespace {

const char* DeviceName(Device d) { return d == Device::kCpu ? "cpu" : "cuda"; }

const char* DTypeName(DType t) {
  switch (t) {
    case DType::kF32: return "f32";
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
    case DType::kF8E4M3: return "f8_e4m3";
    case DType::kI8: return "i8";
  }
  return "unknown";
}

std::string FeatureNames(uint32_t bits) {
  static constexpr struct {
    uint32_t bit;
    const char* name;
  } kNames[] = {{kFeatureInterleavedRope, "interleaved_rope"},
                {kFeatureGqa, "gqa"},
                {kFeatureSlidingWindow, "sliding_window"},
                {kFeatureSoftcap, "softcap"},
                {kFeatureAnyRows, "any_rows"},
                {kFeatureAdds, "adds"}};
  std::string out;
  for (const auto& n : kNames) {
    if ((bits & n.bit) == 0) continue;
    if (!out.empty()) out += '+';
    out += n.name;
    bits &= ~n.bit;
  }
  if (bits != 0) {
    out += out.empty() ? "bits " : "+bits ";
    out += std::to_string(bits);
  }
  return out.empty() ? "none" : out;
}

std::string HeadDimName(int32_t head_dim) { return head_dim == 0 ? "any" : std::to_string(head_dim); }

bool HasBackend(const OpEntry& e, const OpQuery& q) { return q.backend == Backend::kAny || e.backend == q.backend; }

bool Fits(const OpEntry& e, const OpQuery& q) {
  return e.op == q.op && e.device == q.device && e.dtype == q.dtype && (e.head_dim == 0 || e.head_dim == q.head_dim) &&
         (q.features & ~e.features) == 0 && HasBackend(e, q);
}

// What entry e lacks for query q, "device cuda, dtype f16".
std::string Missing(const OpEntry& e, const OpQuery& q) {
  std::string out;
  const auto add = [&out](const std::string& s) {
    if (!out.empty()) out += ", ";
    out += s;
  };
  if (e.device != q.device) add(std::string("device ") + DeviceName(q.device));
  if (e.dtype != q.dtype) add(std::string("dtype ") + DTypeName(q.dtype));
  if (e.head_dim != 0 && e.head_dim != q.head_dim) add("head_dim " + HeadDimName(q.head_dim));
  if (const uint32_t missing = q.features & ~e.features; missing != 0) add("features " + FeatureNames(missing));
  if (!HasBackend(e, q)) add(std::string("backend ") + BackendName(q.backend));
  return out;
}

}  // namespace

const char* BackendName(Backend backend) {
  switch (backend) {
    case Backend::kAny: return "auto";
    case Backend::kFastllm: return "fastllm";
    case Backend::kFlashInfer: return "flashinfer";
  }
  return "unknown";
}

const char* OpName(OpId op) {
  switch (op) {
    case OpId::kEmbedding: return "embedding";
    case OpId::kGatherRows: return "gather_rows";
    case OpId::kRmsNorm: return "rms_norm";
    case OpId::kRope: return "rope";
    case OpId::kKvWrite: return "kv_write";
    case OpId::kPagedAttention: return "paged_attention";
    case OpId::kSiluMul: return "silu_mul";
    case OpId::kSample: return "sample";
    case OpId::kProcessLogits: return "process_logits";
    case OpId::kLogprobs: return "logprobs";
    case OpId::kLinear: return "linear";
    case OpId::kRopeKvWrite: return "rope_kv_write";
    case OpId::kAttentionPlan: return "attention_plan";
    case OpId::kAttentionBound: return "attention_bound";
    case OpId::kQuantLinear: return "quant_linear";
    case OpId::kQuantEmbedding: return "quant_embedding";
    case OpId::kFeedTokens: return "feed_tokens";
    case OpId::kKeepTokens: return "keep_tokens";
    case OpId::kRandomFill: return "random_fill";
    case OpId::kLinearSiluMul: return "linear_silu_mul";
    case OpId::kCountTokens: return "count_tokens";
    case OpId::kQuantizeFp8: return "quantize_fp8";
    case OpId::kFp8Linear: return "fp8_linear";
    case OpId::kRmsNormFp8: return "rms_norm_fp8";
    case OpId::kSiluMulFp8: return "silu_mul_fp8";
    case OpId::kHalfLinear: return "half_linear";
    case OpId::kHalfEmbedding: return "half_embedding";
    case OpId::kNormLinear: return "norm_linear";
    case OpId::kLinearAdd: return "linear_add";
    case OpId::kNormQkv: return "norm_qkv";
    case OpId::kQuantMlp: return "quant_mlp";
    case OpId::kQuantMlpExact: return "quant_mlp_exact";
    case OpId::kDenseLinear: return "dense_linear";
    case OpId::kQuantPick: return "quant_pick";
    case OpId::kDenseFp8Linear: return "dense_fp8_linear";
    case OpId::kFp8LinearSiluMul: return "fp8_linear_silu_mul";
  }
  return "unknown";
}

Result<const OpEntry*> OpTable::Find(const OpQuery& q) const {
  const OpEntry* best = nullptr;
  for (const OpEntry& e : entries_) {
    if (Fits(e, q) && (best == nullptr || e.priority > best->priority)) best = &e;
  }
  if (best != nullptr) return best;

  std::string message = std::string("no implementation of op ") + OpName(q.op) + ": required device " +
                        DeviceName(q.device) + ", dtype " + DTypeName(q.dtype) + ", head_dim " +
                        HeadDimName(q.head_dim) + ", features " + FeatureNames(q.features);
  if (q.backend != Backend::kAny) message += std::string(", backend ") + BackendName(q.backend);
  bool any = false;
  for (const OpEntry& e : entries_) {
    if (e.op != q.op) continue;
    any = true;
    message += std::string("; ") + e.name + " supports device " + DeviceName(e.device) + ", dtype " +
               DTypeName(e.dtype) + ", head_dim " + HeadDimName(e.head_dim) + ", features " + FeatureNames(e.features) +
               (q.backend == Backend::kAny ? "" : std::string(", backend ") + BackendName(e.backend)) +
               " (missing: " + Missing(e, q) + ")";
  }
  if (!any) message += "; this build has no candidates for the op";
  return Status::Unimplemented(std::move(message));
}

}  // namespace fastllm::ops
