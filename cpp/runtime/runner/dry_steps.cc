#include "runtime/runner/dry_steps.h"

#include <algorithm>

#include "runtime/device/plan_rows.h"
#include "runtime/runner/step_graphs.h"

namespace fastllm::runtime {
namespace {

constexpr int32_t kMostMixed = 1024;    // what prompts and decodes come to where prompts are held back for these
constexpr int32_t kPromptTokens = 128;  // as many as fill a tile of each kernel

}  // namespace

int32_t MostDrySeqs(const BatchLimits& limits) { return std::min(limits.max_num_seqs, limits.max_num_batched_tokens); }

std::vector<DryShape> DrySteps(const BatchLimits& limits, int32_t longest) {
  const int32_t most = MostDrySeqs(limits);
  std::vector<DryShape> steps;
  for (const int32_t size : DecodeLadder(most)) steps.push_back({size, size});
  const int32_t prompt = std::min(kPromptTokens, limits.max_model_len);
  for (const int32_t size : PlanSizes(most, std::min(kMostMixed, limits.max_num_batched_tokens))) {
    const int32_t tokens = std::min(size, limits.max_num_batched_tokens);
    steps.push_back({tokens, std::min(most, (tokens + prompt - 1) / prompt)});
  }
  const int32_t end = std::min({longest, limits.max_model_len, limits.max_num_batched_tokens});
  for (int32_t tokens = 2; tokens <= end; tokens *= 2) steps.push_back({tokens, 1});
  return steps;
}

}  // namespace fastllm::runtime
