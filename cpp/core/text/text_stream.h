// TextStream: the text state of one running request: detokenizer and stop strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "core/request/request.h"
#include "core/text/detokenizer.h"
#include "core/text/stop_filter.h"
#include "fastllm/output.h"
#include "fastllm/token_table.h"

namespace fastllm {

// What some new tokens did.
struct TextUpdate {
  std::string text;                        // to be sent now
  size_t num_tokens = 0;                   // new tokens that count; those after a matched stop string do not
  std::vector<int32_t> text_offsets;       // [num_tokens]: where their text begins, see Detokenizer::Append()
  std::optional<std::string> stop_string;  // matched: the request ends with kStop, nothing may be appended any more
};

// The concatenated text, the offsets and the matched stop string are a function of the token ids alone, not of how they
// arrive. Stop strings: see StopFilter; the text of the first min_tokens tokens is not armed. A stop string that is the
// text of a special token is found too where skip_special_tokens leaves that token out of the text.
class TextStream {
 public:
  TextStream(std::shared_ptr<const TokenTable> table, const Request& request);

  // Takes the next output tokens and, with a finish_reason, the end of the output. kStop means that the last token is
  // the stop token: its text is left out unless include_stop_str_in_output. The end sends all that was held back.
  // The second form uses the memory of *update again and, once it is large enough, takes none of its own.
  TextUpdate Append(std::span<const TokenId> tokens, FinishReason finish_reason = FinishReason::kNone);
  void Append(std::span<const TokenId> tokens, FinishReason finish_reason, TextUpdate* update);

 private:
  bool Add(TextUpdate* update);
  const std::string* HiddenStop(TokenId token) const;
  void EndAtHidden(const std::string& stop, TextUpdate* update);

  Detokenizer detokenizer_;
  StopFilter filter_;
  std::string fresh_;  // scratch: the text of one token
  int32_t min_tokens_ = 0;
  int32_t num_tokens_ = 0;  // output tokens so far
  bool include_stop_ = false;
};

}  // namespace fastllm
