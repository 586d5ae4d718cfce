#pragma once

#include "ops/contract/common.h"

namespace fastllm::ops {

// Elements [0, size) at data, owned by the caller.
template <typename T>
struct List {
  const T* data = nullptr;
  int32_t size = 0;
};

struct TokenBias {
  int32_t id = 0;
  float bias = 0.0f;  // finite
};

// A distinct token of a request's prompt or output. The caller keeps these up to date token by token.
struct TokenCount {
  int32_t id = 0;
  int32_t output_count = 0;  // occurrences in the output
  bool in_prompt = false;
};

// DRY (p-e-w, text-generation-webui, 2024): a token that would prolong a repetition of the end of the history. For
// each earlier place that matches the last L tokens, the token that followed it loses
//   multiplier * base^(L - allowed_length),  L = the longest such match, when L >= max(1, allowed_length).
// A match never holds a breaker, and a breaker is never penalised. Cost: linear in the tokens looked at.
struct DryRow {
  float multiplier = 0.0f;     // 0: off
  float base = 1.75f;          // >= 1
  int32_t allowed_length = 2;  // >= 0
  int32_t range = 0;           // looks at the last `range` tokens; <= 0: at all
  List<int32_t> history;       // prompt, then output
  List<int32_t> breakers;      // ascending
};

// What is done to one row. Every default is off, and what is off costs nothing.
struct LogitsRow {
  const int32_t* bitmask =
      nullptr;               // ceil(vocab / 32) words; token t is possible when bit t % 32 of word t / 32 is set
  List<int32_t> allowed;     // data != null: only these are possible (an empty list leaves none)
  List<int32_t> bad_words;   // the last tokens of bad words whose beginning has just been written
  List<int32_t> min_tokens;  // impossible before min_tokens
  List<TokenBias> logit_bias;
  List<TokenCount> counts;          // distinct ids
  float repetition_penalty = 1.0f;  // > 0; x / penalty for x > 0, else x * penalty; prompt and output tokens
  float frequency_penalty = 0.0f;   // x - penalty * output_count
  float presence_penalty = 0.0f;    // x - penalty, for tokens of the output
  DryRow dry;
};

// Changes logits[r, :] in this order: bitmask -> allowed -> bad_words -> min_tokens -> logit_bias -> repetition ->
// frequency -> presence -> dry. "Impossible" is -inf, which nothing later undoes. Only bitmask and allowed pass over
// the vocabulary; the rest costs by list element. Ids outside the vocabulary are passed over. Rows are independent.
//
// With `from`, logits[r, :] is first copied from there. Raw logprobs see the bitmask alone, and the token that they are
// asked of is known only after sampling: for rows that want them and change more than the bitmask, apply bitmasks in
// place, then process, sample and take logprobs a few rows at a time, through a buffer of those few rows.
struct ProcessLogitsParams {
  float* logits = nullptr;          // [num_rows, vocab], row stride logits_stride
  const LogitsRow* rows = nullptr;  // [num_rows]
  int64_t logits_stride = 0;
  int32_t num_rows = 0;
  int32_t vocab = 0;
  const float* from = nullptr;  // [num_rows, vocab], row stride from_stride, or null: in place
  int64_t from_stride = 0;
};
using ProcessLogitsFn = void (*)(const ProcessLogitsParams&, const OpContext&);

}  // namespace fastllm::ops
