#include "core/text/text_stream.h"

#include <algorithm>

namespace fastllm {
namespace {

size_t LongestStopChars(const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) longest = std::max(longest, CountUtf8Chars(stop));
  return longest;
}

}  // namespace

TextStream::TextStream(std::shared_ptr<const TokenTable> table, const Request& request)
    : detokenizer_(std::move(table), request.prompt, request.sampling.skip_special_tokens),
      matcher_(request.sampling.stop),
      min_tokens_(request.sampling.min_tokens),
      include_stop_(request.sampling.include_stop_str_in_output) {
  const size_t longest = LongestStopChars(request.sampling.stop);
  if (!include_stop_ && longest > 0) hold_chars_ = longest - 1;
}

TextUpdate TextStream::Append(std::span<const TokenId> tokens, FinishReason finish_reason) {
  TextUpdate update;
  const size_t before = pending_.size();
  const bool drop_last_text = finish_reason == FinishReason::kStop && !include_stop_;
  for (const TokenId token : tokens) {
    ++num_tokens_;
    ++update.num_tokens;
    if (drop_last_text && update.num_tokens == tokens.size()) break;
    const size_t begin = pending_.size();
    detokenizer_.Append(token, &pending_);
    if (Search(begin, &update)) return update;
  }
  if (finish_reason != FinishReason::kNone) {
    const size_t begin = pending_.size();
    detokenizer_.Flush(&pending_);
    if (Search(begin, &update)) return update;
  }
  const size_t num_sent = finish_reason == FinishReason::kNone ? SendableBytes(before) : pending_.size();
  update.text = pending_.substr(0, num_sent);
  pending_.erase(0, num_sent);
  return update;
}

// Feeds pending_[begin:] to the stop strings. On a match cuts the text and fills the update.
bool TextStream::Search(size_t begin, TextUpdate* update) {
  if (matcher_.empty() || begin == pending_.size()) return false;
  const std::string_view fresh = std::string_view(pending_).substr(begin);
  // The matcher reads the text of the first min_tokens tokens too: a later match may start in it.
  const size_t armed_from = num_tokens_ > min_tokens_ ? 0 : fresh.size();
  const auto match = matcher_.Feed(fresh, armed_from);
  if (!match) return false;
  const std::string& stop = matcher_.stop(match->stop);
  const size_t end = begin + match->end;
  pending_.resize(include_stop_ ? end : end - stop.size());
  update->text = std::move(pending_);
  update->stop_string = stop;
  pending_.clear();
  return true;
}

// Bytes of pending_ in front of its last hold_chars_ characters; pending_[known:] came since the last call. Walks over
// what is new and what is sent, never over all that is held.
size_t TextStream::SendableBytes(size_t known) {
  num_pending_chars_ += CountUtf8Chars(std::string_view(pending_).substr(known));
  size_t bytes = 0;
  for (; num_pending_chars_ > hold_chars_; --num_pending_chars_) {
    do ++bytes;
    while (bytes < pending_.size() && (static_cast<unsigned char>(pending_[bytes]) & 0xC0) == 0x80);
  }
  return bytes;
}

}  // namespace fastllm
