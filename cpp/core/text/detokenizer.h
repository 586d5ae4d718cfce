// Detokenizer: output tokens of one request -> text increments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/ids.h"
#include "core/text/byte_run.h"
#include "core/text/utf8_decoder.h"
#include "fastllm/status.h"
#include "fastllm/token_table.h"

namespace fastllm {

struct DetokenizerOptions {
  bool skip_special_tokens = true;
  bool spaces_between_special_tokens = true;  // false: see TokenTable::added; of no effect with skip_special_tokens
};

// Text of a token sequence: the bytes of its tokens, decoded as a whole as TokenTable says. Special tokens are left out
// with skip_special_tokens. The start of a text (strip_leading_space, first_bytes) is that of prompt and output
// together, so it concerns the output only when the prompt has no text. Ids outside the table (a vocabulary that is
// padded) have no text. Time is linear in the output, and what is held back is bounded (utf8_decoder.h, byte_run.h).
class Detokenizer {
 public:
  Detokenizer(std::shared_ptr<const TokenTable> table, std::span<const TokenId> prompt, DetokenizerOptions options);

  // Appends to *out the text that this token completes. Returns where the token's text begins, in characters from the
  // start of the output: the characters complete before it, so a token that goes on an unfinished character has the
  // offset of that character. Known with the token: how it arrives and what is held back do not change it.
  size_t Append(TokenId token, std::string* out);

  // Ends the output: an incomplete character becomes U+FFFD.
  void Flush(std::string* out);

  // True for a special token that skip_special_tokens leaves out.
  bool IsHidden(TokenId token) const {
    return options_.skip_special_tokens && token >= 0 && static_cast<size_t>(token) < table_->special.size() &&
           table_->special[token] != 0;
  }
  const std::string& BytesOf(TokenId token) const { return table_->bytes[token]; }

  // Characters appended so far.
  size_t num_chars() const { return num_chars_; }

 private:
  bool IsLeftOut(TokenId token) const;
  std::string_view TakeBytes(TokenId token);
  void Count(size_t before, std::string* out);

  std::shared_ptr<const TokenTable> table_;
  Utf8Decoder utf8_;
  ByteRun run_;
  size_t num_chars_ = 0;  // appended to the output so far
  DetokenizerOptions options_;
  bool strips_space_;           // a space at the start of the text that comes next is to be dropped
  bool uses_first_bytes_;       // the next token has its first_bytes
  bool follows_added_ = false;  // the last output token is one of TokenTable::added
};

// The text of a whole sequence.
std::string Detokenize(const std::shared_ptr<const TokenTable>& table, std::span<const TokenId> tokens,
                       DetokenizerOptions options);

// kInvalidArgument when the columns of the table differ in length, or a byte_token is not one byte.
Status ValidateTokenTable(const TokenTable& table);

}  // namespace fastllm
