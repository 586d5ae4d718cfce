// LogitsProcessor: code of the host that changes logits before a token is drawn from them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fastllm/sampling_params.h"
#include "fastllm/status.h"

namespace fastllm {

// An output that takes a token in this step.
struct ProcessorRow {
  uint64_t request_id = 0;  // this and the next as in RequestDelta
  int32_t index = 0;
  const SamplingParams* params = nullptr;  // extra_args among them
  std::span<const int32_t> prompt_token_ids;
  std::span<const int32_t> output_token_ids;
  std::span<float> logits;  // [vocab_size], to be changed in place; -inf makes a token impossible
  Status status;            // to be set when this request alone is to end with an error
};

// Given to Engine::Create(). Called in the order in which they were given there.
class LogitsProcessor {
 public:
  virtual ~LogitsProcessor() = default;

  // What errors call it.
  virtual std::string Name() const { return "logits processor"; }

  // Keys of SamplingParams::extra_args that are for this one. A request takes part when it brings one of them, so that
  // the others pay nothing. A processor without names takes part in every request.
  virtual std::vector<std::string> ArgNames() const { return {}; }

  // Refuses a request that takes part, in Engine::Submit() and Engine::Validate(): any thread, several at a time.
  virtual Status ValidateParams(const SamplingParams&) const { return Status::Ok(); }

  // Whether Apply() never changes which logit is the greatest. If so it is called behind the temperature (before min_p,
  // top_k and top_p) and not for rows that are greedy; else before everything but logprobs of mode raw_*.
  virtual bool IsArgmaxInvariant() const = 0;

  // Changes the logits of the rows, all of which take part. One thread, the one that samples: everything waits for it.
  // A row is not here while its request waits or computes its prompt. After a Status that is not ok, or an exception,
  // the requests of these rows end with finish_reason kError, and no others.
  virtual Status Apply(std::span<ProcessorRow> rows) = 0;
};

}  // namespace fastllm
