// PromptQuestions: which tokens of a step give log probabilities of prompt tokens, and what is asked about them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/step/step_result.h"
#include "runtime/runner/batch_state.h"
#include "runtime/sample/logprob_reader.h"

namespace fastllm::runtime {

// Logits at position p are about the token at p + 1; those of a prompt's last token are about the output.
class PromptQuestions {
 public:
  // Of the rows of a step, in which row r's tokens follow those of row r - 1.
  explicit PromptQuestions(const std::vector<BatchRow>& rows);

  // By question: the token row whose logits are asked about, and the question.
  const std::vector<int32_t>& token_rows() const { return token_rows_; }
  const std::vector<LogprobQuestion>& questions() const { return questions_; }

  // The answers, one for each question, by request.
  std::vector<PromptLogprobs> Share(std::vector<PositionLogprobs> answers) const;

 private:
  struct Part {
    RequestId id;
    int32_t first_position;
    int32_t count;
  };
  std::vector<int32_t> token_rows_;
  std::vector<LogprobQuestion> questions_;
  std::vector<Part> parts_;
};

}  // namespace fastllm::runtime
