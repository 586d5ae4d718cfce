#include "core/request/validate_options.h"

#include <string>
#include <utility>

namespace fastllm {
namespace {

Status CheckTimeLimit(const char* name, int64_t ms) {
  if (ms >= 0 && ms <= kMaxTimeLimitMs) return Status::Ok();
  return Status::InvalidArgument(std::string(name) + " must be in [0, " + std::to_string(kMaxTimeLimitMs) + "], got " +
                                 std::to_string(ms));
}

}  // namespace

Status ValidateExtraKeys(const ExtraKeys& keys, int64_t num_prompt_tokens) {
  if (keys.lora_name.empty() && !keys.lora_path.empty()) {
    return Status::InvalidArgument("lora_path needs a lora_name, which is empty");
  }
  int64_t end = 0;
  for (size_t i = 0; i < keys.media.size(); ++i) {
    const MediaSpan& m = keys.media[i];
    const std::string name = "media[" + std::to_string(i) + "]";
    if (m.hash.empty()) return Status::InvalidArgument(name + " must have a hash");
    if (m.length < 1)
      return Status::InvalidArgument(name + " must have a length of at least 1, got " + std::to_string(m.length));
    if (m.offset < end) {
      return Status::InvalidArgument(name + " must begin at " + std::to_string(end) + " or later, got " +
                                     std::to_string(m.offset));
    }
    end = int64_t{m.offset} + m.length;
    if (end > num_prompt_tokens) {
      return Status::InvalidArgument(name + " must end within the prompt's " + std::to_string(num_prompt_tokens) +
                                     " tokens, got " + std::to_string(end));
    }
  }
  if (std::cmp_greater(keys.embedding_digests.size(), num_prompt_tokens)) {
    return Status::InvalidArgument("embedding_digests must be at most one per block, got " +
                                   std::to_string(keys.embedding_digests.size()) + " for " +
                                   std::to_string(num_prompt_tokens) + " tokens");
  }
  return Status::Ok();
}

Status ValidateOptions(const GenerationRequest& request, const RequestLimits& limits) {
  if (request.priority != 0 && !limits.by_priority) {
    return Status::InvalidArgument("priority must be 0 with scheduling_policy 'fcfs', which does not look at it, got " +
                                   std::to_string(request.priority));
  }
  FASTLLM_RETURN_IF_ERROR(CheckTimeLimit("timeout_ms", request.timeout_ms));
  FASTLLM_RETURN_IF_ERROR(CheckTimeLimit("max_queue_time_ms", request.max_queue_time_ms));
  return ValidateExtraKeys(request.extra_keys, static_cast<int64_t>(request.prompt_token_ids.size()));
}

}  // namespace fastllm
