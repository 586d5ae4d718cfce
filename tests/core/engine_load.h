// A random load for the engine whose outcome is known: the next token is a function of the prompt and the place alone.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/request/request.h"
#include "engine_fixture.h"
#include "fastllm/output.h"
#include "fastllm/token_table.h"

namespace fastllm {

inline constexpr int32_t kLoadVocab = 64;

// A token that depends on the whole prompt and the position alone.
inline TokenId NextToken(std::span<const TokenId> tokens, size_t num_prompt) {
  uint32_t h = static_cast<uint32_t>(tokens.size() - num_prompt) * 2654435761u;
  for (size_t i = 0; i < num_prompt; ++i) h = (h ^ static_cast<uint32_t>(tokens[i])) * 16777619u;
  return static_cast<TokenId>((h >> 8) % kLoadVocab);
}

// Tokens 0..62 are two letters each, 63 is the end of sequence.
inline std::shared_ptr<const TokenTable> Pairs() {
  auto table = std::make_shared<TokenTable>();
  for (int i = 0; i < kLoadVocab; ++i)
    table->bytes.push_back({static_cast<char>('a' + i / 8), static_cast<char>('a' + i % 8)});
  table->special.assign(kLoadVocab, 0);
  table->special[kLoadVocab - 1] = 1;
  return table;
}

inline std::shared_ptr<Request> RandomRequest(RequestId id, std::mt19937* rng) {
  auto request = std::make_shared<Request>();
  request->id = id;
  // Few first tokens, so that prefixes are shared.
  const size_t num_prompt = 1 + (*rng)() % 40;
  for (size_t i = 0; i < num_prompt; ++i)
    request->prompt.push_back(static_cast<TokenId>(i < 16 ? i % 3 : (*rng)() % kLoadVocab));
  request->max_tokens = 1 + static_cast<int32_t>((*rng)() % 30);
  request->eos_token_ids = {kLoadVocab - 1};
  if ((*rng)() % 4 == 0) request->sampling.stop = {"aa", "bcd"};
  return request;
}

// What the request gives when it is not aborted.
struct Expected {
  Ids ids;
  std::string text;
  FinishReason reason = FinishReason::kLength;
};

inline Expected Foretell(const Request& request, const TokenTable& table) {
  Expected e;
  Ids tokens = request.prompt;
  for (int32_t i = 0; i < request.max_tokens; ++i) {
    const TokenId token = NextToken(tokens, request.prompt.size());
    tokens.push_back(token);
    e.ids.push_back(token);
    if (token == kLoadVocab - 1) return e.reason = FinishReason::kStop, e;
    for (const char c : table.bytes[token]) {
      e.text += c;
      for (const std::string& stop : request.sampling.stop) {
        if (!e.text.ends_with(stop)) continue;
        e.text.resize(e.text.size() - stop.size());
        return e.reason = FinishReason::kStop, e;
      }
    }
  }
  return e;
}

}  // namespace fastllm
