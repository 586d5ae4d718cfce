#include "runtime/weights/tensor_source.h"

#include "runtime/weights/quoted.h"

namespace fastllm::runtime {

Result<const TensorInfo*> TensorSource::Get(std::string_view name) const {
  if (const TensorInfo* tensor = Find(name)) return tensor;
  return Status::NotFound("the checkpoint has no tensor " + Quoted(name));
}

const char* WeightTypeName(WeightType type) {
  switch (type) {
    case WeightType::kF32: return "F32";
    case WeightType::kF16: return "F16";
    case WeightType::kBF16: return "BF16";
    case WeightType::kF8E4M3: return "F8_E4M3";
    case WeightType::kQ8_0: return "Q8_0";
    case WeightType::kQ4_0: return "Q4_0";
    case WeightType::kQ4_1: return "Q4_1";
    case WeightType::kQ5_0: return "Q5_0";
    case WeightType::kQ5_1: return "Q5_1";
    case WeightType::kQ2_K: return "Q2_K";
    case WeightType::kQ3_K: return "Q3_K";
    case WeightType::kQ4_K: return "Q4_K";
    case WeightType::kQ5_K: return "Q5_K";
    case WeightType::kQ6_K: return "Q6_K";
  }
  return "unknown";
}

int64_t WeightBlockElements(WeightType type) {
  switch (type) {
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
    case WeightType::kF8E4M3: return 1;
    case WeightType::kQ8_0:
    case WeightType::kQ4_0:
    case WeightType::kQ4_1:
    case WeightType::kQ5_0:
    case WeightType::kQ5_1: return 32;
    case WeightType::kQ2_K:
    case WeightType::kQ3_K:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
    case WeightType::kQ6_K: return 256;
  }
  return 1;
}

int64_t WeightBlockBytes(WeightType type) {
  switch (type) {
    case WeightType::kF32: return 4;
    case WeightType::kF16:
    case WeightType::kBF16: return 2;
    case WeightType::kF8E4M3: return 1;
    case WeightType::kQ8_0: return 2 + 32;
    case WeightType::kQ4_0: return 2 + 16;
    case WeightType::kQ4_1: return 4 + 16;
    case WeightType::kQ5_0: return 2 + 4 + 16;
    case WeightType::kQ5_1: return 4 + 4 + 16;
    case WeightType::kQ2_K: return 16 + 64 + 4;
    case WeightType::kQ3_K: return 32 + 64 + 12 + 2;
    case WeightType::kQ4_K: return 4 + 12 + 128;
    case WeightType::kQ5_K: return 4 + 12 + 32 + 128;
    case WeightType::kQ6_K: return 128 + 64 + 16 + 2;
  }
  return 1;
}

}  // namespace fastllm::runtime
