#include "core/text/stop_filter.h"

#include <utility>

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

std::string StopFilter::Take(bool all) {
  const size_t num_held = all || include_stop_ ? 0 : matcher_.NumHeld();
  if (num_held == 0) return std::exchange(pending_, {});
  const size_t num_sent = pending_.size() - num_held;
  std::string sent = pending_.substr(0, num_sent);
  pending_.erase(0, num_sent);
  return sent;
}

}  // namespace fastllm
