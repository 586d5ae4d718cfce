#include "core/text/text_stream.h"

#include <algorithm>
#include <utility>

namespace fastllm {

TextStream::TextStream(std::shared_ptr<const TokenTable> table, const Request& request)
    : detokenizer_(std::move(table), request.prompt,
                   {request.sampling.skip_special_tokens, request.sampling.spaces_between_special_tokens}),
      filter_(request.sampling.stop, request.sampling.include_stop_str_in_output),
      min_tokens_(request.sampling.min_tokens),
      include_stop_(request.sampling.include_stop_str_in_output) {}

TextUpdate TextStream::Append(std::span<const TokenId> tokens, FinishReason finish_reason) {
  TextUpdate update;
  Append(tokens, finish_reason, &update);
  return update;
}

void TextStream::Append(std::span<const TokenId> tokens, FinishReason finish_reason, TextUpdate* update) {
  update->text.clear();
  update->num_tokens = 0;
  update->text_offsets.clear();
  update->text_offsets.reserve(tokens.size());
  update->stop_string.reset();
  const bool drop_last_text = finish_reason == FinishReason::kStop && !include_stop_;
  for (const TokenId token : tokens) {
    ++num_tokens_;
    ++update->num_tokens;
    if (drop_last_text && update->num_tokens == tokens.size()) break;
    fresh_.clear();
    if (const std::string* stop = HiddenStop(token)) {
      EndAtHidden(*stop, update);
      return;
    }
    update->text_offsets.push_back(static_cast<int32_t>(detokenizer_.Append(token, &fresh_)));
    if (Add(update)) return;
  }
  if (finish_reason != FinishReason::kNone) {
    fresh_.clear();
    detokenizer_.Flush(&fresh_);
    if (update->text_offsets.size() < update->num_tokens) {  // the stop token stands behind the text
      update->text_offsets.push_back(static_cast<int32_t>(detokenizer_.num_chars()));
    }
    if (Add(update)) return;
  }
  filter_.Take(finish_reason != FinishReason::kNone, &update->text);
}

// The stop string that is the text of a special token which the text does not show; null for any other token.
const std::string* TextStream::HiddenStop(TokenId token) const {
  if (filter_.stops().empty() || num_tokens_ <= min_tokens_ || !detokenizer_.IsHidden(token)) return nullptr;
  const auto& stops = filter_.stops();
  const auto it = std::find(stops.begin(), stops.end(), detokenizer_.BytesOf(token));
  return it == stops.end() ? nullptr : &*it;
}

// A hidden token ends the output; what came before it may still complete another stop string.
void TextStream::EndAtHidden(const std::string& stop, TextUpdate* update) {
  detokenizer_.Flush(&fresh_);
  update->text_offsets.push_back(static_cast<int32_t>(detokenizer_.num_chars()));
  if (Add(update)) return;
  update->stop_string = stop;
  filter_.Take(true, &update->text);
}

// Hands fresh_ to the stop strings. On a match fills the update.
bool TextStream::Add(TextUpdate* update) {
  if (fresh_.empty()) return false;
  update->stop_string = filter_.Add(fresh_, num_tokens_ > min_tokens_);
  if (!update->stop_string) return false;
  filter_.Take(true, &update->text);
  return true;
}

}  // namespace fastllm
