#include "runtime/runner/step_runner.h"

#include <exception>
#include <string>

namespace fastllm::runtime {

PositionLogprobs DrawnLogprobs::Of(size_t i, TokenId id) const {
  PositionLogprobs entries;
  entries.push_back({id, token[i], ranks[i]});
  for (int32_t k = 0; k < num_top[i]; ++k) {
    const size_t at = i * stride + k;
    if (top_ids[at] >= 0 && top_ids[at] != id) entries.push_back({top_ids[at], top[at], k + 1});
  }
  return entries;
}

void PendingStep::Finish() {
  if (tokens == nullptr) return;
  try {
    device->WaitEvent(event);
    for (size_t i = 0; i < result.rows.size(); ++i) {
      result.rows[i].tokens.assign(1, tokens[i]);
      if (logprobs == nullptr || logprobs->num_top[i] < 0 || tokens[i] < 0) continue;
      result.rows[i].logprobs.push_back(logprobs->Of(i, tokens[i]));
    }
  } catch (const std::exception& e) {
    result.rows.clear();
    result.status = Status::Internal(std::string("step failed: ") + e.what());
  }
}

}  // namespace fastllm::runtime
