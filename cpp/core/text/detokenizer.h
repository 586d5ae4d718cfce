// Detokenizer: output tokens of one request -> text increments.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "core/text/utf8_decoder.h"
#include "fastllm/status.h"
#include "fastllm/token_table.h"

namespace fastllm {

// Text of a token sequence: the bytes of its tokens, decoded as a whole (utf8_decoder.h). Special tokens are left out
// with skip_special_tokens. With TokenTable::strip_leading_space one space at the very start of the text of prompt and
// output together is dropped, so the output loses a space only when the prompt has no text at all. Ids outside the
// table (a vocabulary that is padded) have no text.
class Detokenizer {
 public:
  Detokenizer(std::shared_ptr<const TokenTable> table, const std::vector<TokenId>& prompt, bool skip_special_tokens);

  // Appends to *out the text that this token completes.
  void Append(TokenId token, std::string* out);

  // Ends the output: an incomplete character becomes U+FFFD.
  void Flush(std::string* out) { utf8_.Flush(out); }

 private:
  bool HasText(TokenId token) const;

  std::shared_ptr<const TokenTable> table_;
  Utf8Decoder utf8_;
  bool skip_special_tokens_;
  bool at_start_;  // nothing has been decoded and a leading space is to be dropped
};

// kInvalidArgument when the two columns of the table differ in length.
Status ValidateTokenTable(const TokenTable& table);

}  // namespace fastllm
