#include "core/text/detokenizer.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace fastllm {

Detokenizer::Detokenizer(std::shared_ptr<const TokenTable> table, std::span<const TokenId> prompt,
                         DetokenizerOptions options)
    : table_(std::move(table)),
      utf8_(table_->invalid_bytes == InvalidBytes::kReplaceEach),
      options_(options),
      strips_space_(table_->strip_leading_space),
      uses_first_bytes_(!table_->first_bytes.empty()) {
  for (const TokenId token : prompt) {
    if (!strips_space_ && !uses_first_bytes_) break;
    if (!IsLeftOut(token) && !TakeBytes(token).empty()) strips_space_ = false;
  }
}

bool Detokenizer::IsLeftOut(TokenId token) const {
  if (token < 0 || static_cast<size_t>(token) >= table_->bytes.size()) return true;
  if (IsHidden(token)) return true;
  return table_->bytes[token].empty() && (table_->first_bytes.empty() || table_->first_bytes[token].empty());
}

// The bytes of a token that is not left out, at its place in the text; the next token is then at the next place.
std::string_view Detokenizer::TakeBytes(TokenId token) {
  if (!uses_first_bytes_) return table_->bytes[token];
  const std::string_view bytes = table_->first_bytes[token];
  switch (table_->first_bytes_until) {
    case FirstBytesUntil::kToken: uses_first_bytes_ = false; break;
    case FirstBytesUntil::kBytes: uses_first_bytes_ = table_->bytes[token].empty(); break;
    case FirstBytesUntil::kVisible: uses_first_bytes_ = bytes.empty(); break;
  }
  return bytes;
}

size_t Detokenizer::Append(TokenId token, std::string* out) {
  const size_t before = out->size();
  if (IsLeftOut(token)) {
    // sentencepiece joins the bytes of neighbours only.
    if (table_->invalid_bytes == InvalidBytes::kReplaceEach) utf8_.Flush(out);
    Count(before, out);
    return num_chars_ + run_.num_held_chars();
  }
  std::string_view bytes = TakeBytes(token);
  if (!options_.spaces_between_special_tokens && !options_.skip_special_tokens) {
    const auto added = table_->added.find(token);
    const bool is_added = added != table_->added.end();
    if (is_added && follows_added_) bytes = added->second;
    follows_added_ = is_added;
  }
  if (!table_->byte_token.empty() && table_->byte_token[token] != 0) {
    const size_t begin = num_chars_ + run_.num_held_chars();
    run_.Append(bytes.front(), out);
    Count(before, out);
    return begin;
  }
  run_.End(out);
  if (!bytes.empty() && !utf8_.Continues(bytes.front())) utf8_.Flush(out);
  Count(before, out);
  const size_t begin = num_chars_;
  const size_t own = out->size();
  utf8_.Append(bytes, out);
  Count(own, out);
  return begin;
}

void Detokenizer::Flush(std::string* out) {
  const size_t before = out->size();
  run_.End(out);
  utf8_.Flush(out);
  Count(before, out);
}

// Takes note of (*out)[before:], which is new text of the output.
void Detokenizer::Count(size_t before, std::string* out) {
  if (out->size() == before) return;
  if (strips_space_) {
    if ((*out)[before] == ' ') out->erase(before, 1);
    strips_space_ = false;
  }
  num_chars_ += CountUtf8Chars(std::string_view(*out).substr(before));
}

std::string Detokenize(const std::shared_ptr<const TokenTable>& table, std::span<const TokenId> tokens,
                       DetokenizerOptions options) {
  Detokenizer detokenizer(table, {}, options);
  std::string text;
  for (const TokenId token : tokens) detokenizer.Append(token, &text);
  detokenizer.Flush(&text);
  return text;
}

Status ValidateTokenTable(const TokenTable& table) {
  const size_t size = table.bytes.size();
  const auto check = [size](const char* name, size_t got) {
    if (got == size) return Status::Ok();
    return Status::InvalidArgument(std::string("token table: ")
                                       .append(name)
                                       .append(" must have one entry per token (")
                                       .append(std::to_string(size))
                                       .append("), got ")
                                       .append(std::to_string(got)));
  };
  FASTLLM_RETURN_IF_ERROR(check("special", table.special.size()));
  if (!table.first_bytes.empty()) FASTLLM_RETURN_IF_ERROR(check("first_bytes", table.first_bytes.size()));
  if (table.byte_token.empty()) return Status::Ok();
  FASTLLM_RETURN_IF_ERROR(check("byte_token", table.byte_token.size()));
  for (size_t id = 0; id < size; ++id) {
    const bool one_byte =
        table.bytes[id].size() == 1 && (table.first_bytes.empty() || table.first_bytes[id].size() == 1);
    if (table.byte_token[id] != 0 && !one_byte) {
      return Status::InvalidArgument(std::string("token table: byte_token ")
                                         .append(std::to_string(id))
                                         .append(" must stand for one byte, got ")
                                         .append(std::to_string(table.bytes[id].size())));
    }
  }
  return Status::Ok();
}

}  // namespace fastllm
