// LogprobReader: log probabilities of rows of logits, as the engine sends them back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/ids.h"
#include "fastllm/output.h"
#include "fastllm/status.h"
#include "ops/contract/logprobs.h"
#include "ops/table/op_table.h"

namespace fastllm::runtime {

// What is asked about one row of logits.
struct LogprobQuestion {
  TokenId token = 0;                          // the token that is there; -1: nothing is asked
  int32_t num_top = 0;                        // of the most likely tokens; -1: all
  const std::vector<TokenId>* ids = nullptr;  // of these; may be null
  float temperature = 1.0f;                   // > 0; the logits are divided by it
  bool as_logits = false;                     // logits / temperature in place of their logprobs
};

// Worker thread. Made by Create(); one that is default-made can only be assigned to.
class LogprobReader {
 public:
  LogprobReader() = default;
  static Result<LogprobReader> Create(const ops::OpTable& table, ops::Device device, int32_t vocab_size);

  // Answers questions[i] about logits[i, :] (row stride `stride`) in answers[i]; not touched where nothing is asked.
  // Works on a few rows at a time, so that its own memory does not grow with rows times num_top.
  void Read(const float* logits, int64_t stride, std::span<const LogprobQuestion> questions, const ops::OpContext& op,
            PositionLogprobs* answers);

 private:
  int32_t NumTop(const LogprobQuestion& q) const;
  void ReadGroup(const float* logits, int64_t stride, std::span<const LogprobQuestion> questions,
                 const ops::OpContext& op, PositionLogprobs* answers);
  PositionLogprobs Answer(const LogprobQuestion& q, const float* row, size_t index) const;

  ops::LogprobsFn fn_ = nullptr;
  int32_t vocab_size_ = 0;
  int32_t top_stride_ = 0;
  std::vector<ops::LogprobsRow> rows_;
  std::vector<float> token_logprobs_;
  std::vector<int32_t> token_ranks_;
  std::vector<int32_t> top_ids_;
  std::vector<float> top_logprobs_;
  std::vector<float> id_logprobs_;
};

}  // namespace fastllm::runtime
