#include "core/request/dry_breakers.h"

#include <utility>

namespace fastllm {
namespace {

Status NotInVocabulary(size_t index, const std::string& text) {
  std::string message = "dry_sequence_breakers[";
  message += std::to_string(index);
  message += "] '";
  message += text.substr(0, 200);
  message += "' is in no token of the vocabulary";
  return Status::InvalidArgument(std::move(message));
}

}  // namespace

Result<std::vector<TokenId>> DryBreakers::Find(const std::vector<std::string>& texts) {
  if (tokens_ == nullptr || texts.empty()) return std::vector<TokenId>();
  const std::lock_guard lock(mutex_);
  if (texts == last_texts_) return last_ids_;
  std::vector<bool> found(texts.size());
  std::vector<TokenId> ids;
  for (size_t id = 0; id < tokens_->bytes.size(); ++id) {
    bool breaks = false;
    for (size_t i = 0; i < texts.size(); ++i) {
      if (tokens_->bytes[id].find(texts[i]) == std::string::npos) continue;
      breaks = found[i] = true;
    }
    if (breaks) ids.push_back(static_cast<TokenId>(id));
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    if (!found[i]) return NotInVocabulary(i, texts[i]);
  }
  last_texts_ = texts;
  last_ids_ = ids;
  return ids;
}

}  // namespace fastllm
