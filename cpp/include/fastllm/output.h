// What the engine tells its host about running requests. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "fastllm/export.h"
#include "fastllm/status.h"

namespace fastllm {

enum class FinishReason : uint8_t { kNone = 0, kStop, kLength, kAbort, kError };

// "stop", "length", "abort", "error"; "" for kNone.
FASTLLM_API const char* FinishReasonName(FinishReason reason);

// Why kStop: nothing (end of sequence), the matched stop token id, or the matched stop string.
using StopReason = std::variant<std::monostate, int32_t, std::string>;

// Times of one finished request, in seconds. Names and formulas are vLLM's (RequestStateStats, FinishedRequestStats).
// A time stamp that was never reached is 0, and so is an interval that ends or begins with it.
struct RequestMetrics {
  double arrival_time = 0;    // Engine::Submit(), seconds since the Unix epoch
  double queued_ts = 0;       // the engine took it; this and the next three on the steady clock
  double scheduled_ts = 0;    // first in a step
  double first_token_ts = 0;  // the results of its first and last token came back
  double last_token_ts = 0;
  double first_token_latency = 0;         // from arrival to the first token
  double queued_time = 0;                 // queued -> scheduled
  double prefill_time = 0;                // scheduled -> first token
  double decode_time = 0;                 // first token -> last token
  double inference_time = 0;              // scheduled -> last token
  double e2e_latency = 0;                 // arrival -> the last delta
  double mean_time_per_output_token = 0;  // decode_time / (num_generation_tokens - 1)
  double min_inter_token_latency = 0;     // between steps that gave tokens; tokens that came together count as one
  double max_inter_token_latency = 0;
  int32_t num_generation_tokens = 0;
  int32_t num_preemptions = 0;
};

// The log probability of a token at some position, or its logit with logprobs_mode *_logits.
struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0.0f;
  int32_t rank = 0;  // 1: the most likely of the vocabulary; 0: not known, for logprob_token_ids

  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

// What is said about one position: the token that is there, then the most likely ones by rank, then logprob_token_ids;
// each token once.
using PositionLogprobs = std::vector<TokenLogprob>;

// News of one output of a request since the last delta. The last delta of an output is the one with a finish_reason;
// nothing follows it. Concatenated over deltas, token_ids and text are the whole output. A request with n > 1 is at its
// end when all of its outputs are.
struct RequestDelta {
  uint64_t request_id = 0;                 // the handle that Engine::Submit returned
  int32_t index = 0;                       // of the output, below SamplingParams::n; each output has its own deltas
  std::vector<int32_t> token_ids;          // new output tokens, the stop token included
  std::string text;                        // new text, valid UTF-8; "" when detokenize is off
  std::vector<PositionLogprobs> logprobs;  // one for each of token_ids when they were asked for, else empty
  std::vector<PositionLogprobs> prompt_logprobs;  // when asked for, in the first delta: one for each prompt token, the
                                                  // first of them empty
  // By token of token_ids: the characters of the output's whole text in front of the token's own text. A token that
  // goes on an unfinished character has the offset of that character. Empty when there is no text.
  std::vector<int32_t> text_offsets;
  FinishReason finish_reason = FinishReason::kNone;
  StopReason stop_reason;
  std::string error;  // why, when finish_reason is kError, and of which kind: kDeadlineExceeded (its time limit),
                      // kResourceExhausted (its queue-time limit), kUnavailable (the engine failed), kInternal
  StatusCode error_code = StatusCode::kOk;
  int32_t num_prompt_tokens = 0;
  int32_t num_cached_tokens = 0;          // prompt tokens whose KV came from the prefix cache
  std::optional<RequestMetrics> metrics;  // in the last delta
};

}  // namespace fastllm
