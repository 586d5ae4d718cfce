#include "runtime/runner/prompt_questions.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace fastllm::runtime {

PromptQuestions::PromptQuestions(const std::vector<BatchRow>& rows) {
  int32_t first_row = 0;
  for (const BatchRow& row : rows) {
    const RunnerSequence& s = *row.sequence;
    const int32_t first = s.num_computed_tokens + 1;
    const int32_t count = std::min(row.num_tokens, s.num_prompt_tokens - first);
    if (s.wants_prompt_logprobs && count > 0) {
      parts_.push_back({row.id, first, count});
      for (int32_t i = 0; i < count; ++i) {
        LogprobQuestion q;
        q.token = s.tokens[first + i];
        q.num_top = *s.sampling.prompt_logprobs;
        questions_.push_back(q);
        token_rows_.push_back(first_row + i);
      }
    }
    first_row += row.num_tokens;
  }
}

std::vector<PromptLogprobs> PromptQuestions::Share(std::vector<PositionLogprobs> answers) const {
  std::vector<PromptLogprobs> shared;
  shared.reserve(parts_.size());
  auto next = std::make_move_iterator(answers.begin());
  for (const Part& part : parts_) {
    shared.push_back({part.id, part.first_position, {next, next + part.count}});
    next += part.count;
  }
  return shared;
}

}  // namespace fastllm::runtime
