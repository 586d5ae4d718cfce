// TextStream: the text state of one running request: detokenizer, stop strings, hold-back.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/base/ids.h"
#include "core/request/request.h"
#include "core/text/detokenizer.h"
#include "core/text/stop_matcher.h"
#include "fastllm/output.h"
#include "fastllm/token_table.h"

namespace fastllm {

// What some new tokens did.
struct TextUpdate {
  std::string text;                        // to be sent now
  size_t num_tokens = 0;                   // new tokens that count; those after a matched stop string do not
  std::optional<std::string> stop_string;  // matched: the request ends with kStop, nothing may be appended any more
};

// The concatenated text and the matched stop string are a function of the token ids alone, not of how they arrive:
//  - A stop string matches anywhere in the text; the one whose last character comes first wins, ties go to the first
//    in the list. Its last character must come after the text of the first min_tokens tokens.
//  - The text ends before the match, or after it with include_stop_str_in_output.
//  - While the request runs and stop strings are excluded, the last max(len(stop)) - 1 characters are held back.
class TextStream {
 public:
  TextStream(std::shared_ptr<const TokenTable> table, const Request& request);

  // Takes the next output tokens and, with a finish_reason, the end of the output. kStop means that the last token is
  // the stop token: its text is left out unless include_stop_str_in_output. The end sends all that was held back.
  TextUpdate Append(std::span<const TokenId> tokens, FinishReason finish_reason = FinishReason::kNone);

 private:
  bool Search(size_t begin, TextUpdate* update);
  size_t SendableBytes(size_t known);

  Detokenizer detokenizer_;
  StopMatcher matcher_;
  std::string pending_;  // decoded, not sent
  size_t num_pending_chars_ = 0;
  size_t hold_chars_ = 0;
  int32_t min_tokens_ = 0;
  int32_t num_tokens_ = 0;  // output tokens so far
  bool include_stop_ = false;
};

}  // namespace fastllm
