// Sampler: from logits to tokens and their log probabilities, for the rows of one step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/base/ids.h"
#include "core/step/step_plan.h"
#include "fastllm/output.h"
#include "fastllm/status.h"
#include "ops/contract/logits.h"
#include "ops/contract/sampling.h"
#include "ops/table/op_table.h"
#include "runtime/sample/host_processors.h"
#include "runtime/sample/logits_state.h"
#include "runtime/sample/logprob_reader.h"
#include "runtime/sample/logprobs_mode.h"

namespace fastllm::runtime {

// A sequence whose next token is to be drawn. The pointers are the caller's and stay valid until Run() returns.
struct SamplerRow {
  RequestId id = 0;
  const SamplingSpec* spec = nullptr;
  const std::vector<TokenId>* tokens = nullptr;  // prompt, then output
  int32_t num_prompt_tokens = 0;
  LogitsState* logits_state = nullptr;  // null without spec->logits

  // Tokens that the request has already produced: the counter of its random stream.
  int32_t num_output_tokens() const { return static_cast<int32_t>(tokens->size()) - num_prompt_tokens; }
};

// Worker thread. The order of operations is that of cpp/docs/ops.md, "From logits to tokens". A step is Clear(), Add()
// for each row, Arrange(), Run(). A row that uses a feature costs what the feature costs; the others pay nothing.
class Sampler {
 public:
  static Result<Sampler> Create(const ops::OpTable& table, ops::Device device, int32_t vocab_size, int32_t max_rows,
                                LogprobsMode mode, std::vector<std::shared_ptr<LogitsProcessor>> processors = {});

  // Begins a step.
  void Clear();
  void Add(const SamplerRow& row) { rows_.push_back(row); }

  // After the last Add(): which row each row of the logits must be of. Rows that are worked on alike come together.
  const std::vector<int32_t>& Arrange();

  // After Arrange(), where every row takes the largest of its logits as the model leaves them and nothing else is
  // asked: room for the tokens, in the order of Add() and of Arrange(), which the caller may then find by itself in
  // place of Run(). Else null.
  std::vector<int32_t>* GreedyTokens();

  // Samples logits [rows added, vocab], in the order of Arrange(), and changes them. The tokens, in the order of
  // Add(), stay valid until Clear(); -1 for a row without a usable logit.
  const std::vector<int32_t>& Run(const at::Tensor& logits, const ops::OpContext& op);

  // After Run(), by the order of Add(): the logprobs of row i, if it asked for them and has a token.
  bool has_logprobs(size_t i) const { return i < logprobs_.size() && !logprobs_[i].empty(); }
  PositionLogprobs& logprobs(size_t i) { return logprobs_[i]; }
  // After Run(), by the order of Add(): why a logits processor of the host failed on row i, which then has no token.
  const std::string& error(size_t i) const { return host_.error(place_of_[i]); }

  LogprobReader& reader() { return reader_; }

 private:
  struct Ops {
    ops::SampleFn sample = nullptr;
    ops::ProcessLogitsFn process = nullptr;
  };
  // The rows in the order of Arrange(): without logprobs; with them; with raw logprobs and logits that the host's
  // processors change, which all rows go through at once; with raw logprobs and changed logits.
  struct Batch {
    std::vector<int32_t> order;
    int32_t num_silent = 0;    // rows of the first kind
    int32_t num_read = 0;      // of the first two
    int32_t num_in_place = 0;  // of the first three
    bool any_processed = false;
    std::vector<ops::SampleRow> sample;
    std::vector<ops::LogitsRow> logits;
    std::vector<int32_t> ban_ids;
    std::vector<int32_t> ban_start;
    std::vector<int32_t> tokens;
    std::vector<LogprobQuestion> questions;
    std::vector<PositionLogprobs> answers;
  };

  Sampler() = default;
  void Describe(const SamplerRow& row);
  bool NeedsCopy(const SamplerRow& row) const;
  bool NeedsRaw(const SamplerRow& row) const;
  void RunInPlace(const at::Tensor& logits, const ops::OpContext& op);
  // Draws the tokens of rows [first, first + count) from `x`, their logits.
  void Draw(float* x, int64_t stride, int32_t first, int32_t count, const ops::OpContext& op);
  void ReadLogprobs(const float* x, int64_t stride, int32_t first, int32_t count, const ops::OpContext& op);
  // Rows whose raw logits are still wanted when their changed logits are sampled: a few at a time, in a copy.
  void RunCopied(const at::Tensor& logits, const ops::OpContext& op);

  Ops ops_;
  int32_t vocab_size_ = 0;
  LogprobsMode mode_ = LogprobsMode::kRawLogprobs;
  LogprobReader reader_;
  HostProcessors host_;
  std::vector<SamplerRow> rows_;
  std::vector<int32_t> place_of_;  // in the order of Arrange()
  Batch batch_;
  at::Tensor copy_;  // [kCopyRows, vocab]; absent until it is needed
  std::vector<int32_t> tokens_;
  std::vector<PositionLogprobs> logprobs_;
};

}  // namespace fastllm::runtime
