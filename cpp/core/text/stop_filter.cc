#include "core/text/stop_filter.h"

namespace fastllm {

std::optional<std::string> StopFilter::Add(std::string_view text, bool armed) {
  const size_t begin = pending_.size();
  pending_.append(text);
  if (matcher_.empty() || text.empty()) return std::nullopt;
  // The matcher reads text that is not armed too: a later match may start in it.
  const auto match = matcher_.Feed(text, armed ? 0 : text.size());
  if (!match) return std::nullopt;
  const std::string& stop = matcher_.stop(match->stop);
  const size_t end = begin + match->end;
  pending_.resize(include_stop_ ? end : end - stop.size());
  return stop;
}

void StopFilter::Take(bool all, std::string* out) {
  const size_t num_held = all || include_stop_ ? 0 : matcher_.NumHeld();
  const size_t num_sent = pending_.size() - num_held;
  out->append(pending_, 0, num_sent);
  pending_.erase(0, num_sent);
}

}  // namespace fastllm
