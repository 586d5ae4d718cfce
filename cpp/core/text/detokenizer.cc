#include "core/text/detokenizer.h"

#include <algorithm>
#include <string_view>

namespace fastllm {

Detokenizer::Detokenizer(std::shared_ptr<const TokenTable> table, const std::vector<TokenId>& prompt,
                         bool skip_special_tokens)
    : table_(std::move(table)),
      skip_special_tokens_(skip_special_tokens),
      at_start_(table_->strip_leading_space &&
                std::none_of(prompt.begin(), prompt.end(), [this](TokenId token) { return HasText(token); })) {}

bool Detokenizer::HasText(TokenId token) const {
  if (token < 0 || static_cast<size_t>(token) >= table_->bytes.size()) return false;
  return !table_->bytes[token].empty() && !(skip_special_tokens_ && table_->special[token]);
}

void Detokenizer::Append(TokenId token, std::string* out) {
  if (!HasText(token)) return;
  std::string_view bytes = table_->bytes[token];
  if (at_start_ && bytes.front() == ' ') bytes.remove_prefix(1);
  at_start_ = false;
  utf8_.Append(bytes, out);
}

Status ValidateTokenTable(const TokenTable& table) {
  if (table.bytes.size() == table.special.size()) return Status::Ok();
  return Status::InvalidArgument("token table: special must have one entry per token (" +
                                 std::to_string(table.bytes.size()) + "), got " + std::to_string(table.special.size()));
}

}  // namespace fastllm
