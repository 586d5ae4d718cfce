#include "core/text/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace fastllm {
namespace {

// borders[n] for n in [0, stop.size()]: length of the longest proper prefix of stop that ends its first n bytes.
std::vector<uint32_t> Borders(const std::string& stop) {
  std::vector<uint32_t> borders(stop.size() + 1, 0);
  uint32_t length = 0;
  for (size_t n = 1; n < stop.size(); ++n) {
    while (length > 0 && stop[n] != stop[length]) length = borders[length];
    if (stop[n] == stop[length]) ++length;
    borders[n + 1] = length;
  }
  return borders;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)), matched_(stops_.size(), 0) {
  borders_.reserve(stops_.size());
  for (const std::string& stop : stops_) borders_.push_back(Borders(stop));
}

std::optional<StopMatcher::Match> StopMatcher::Feed(std::string_view text, size_t armed_from) {
  for (size_t i = 0; i < text.size(); ++i) {
    for (size_t s = 0; s < stops_.size(); ++s) {
      const std::string& stop = stops_[s];
      uint32_t& matched = matched_[s];
      // A whole match that was passed over goes on as its longest border.
      if (matched == stop.size()) matched = borders_[s][matched];
      while (matched > 0 && stop[matched] != text[i]) matched = borders_[s][matched];
      if (stop[matched] == text[i]) ++matched;
      if (matched == stop.size() && i >= armed_from) return Match{s, i + 1};
    }
  }
  return std::nullopt;
}

size_t StopMatcher::NumHeld() const {
  size_t held = 0;
  for (size_t s = 0; s < stops_.size(); ++s) {
    const size_t matched = matched_[s] == stops_[s].size() ? borders_[s][matched_[s]] : matched_[s];
    held = std::max(held, matched);
  }
  return held;
}

}  // namespace fastllm
