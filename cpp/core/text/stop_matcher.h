// StopMatcher: finds stop strings in text that comes in portions, in time linear in the text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fastllm {

// Knuth-Morris-Pratt over all stop strings side by side. Matches may lie inside one portion or across many; the
// portions do not change the result.
class StopMatcher {
 public:
  struct Match {
    size_t stop = 0;  // index in the list
    size_t end = 0;   // offset in the portion just fed, one past the last matched byte
  };

  // Stop strings are valid UTF-8 and not empty.
  explicit StopMatcher(std::vector<std::string> stops);

  // Feeds the next portion; returns the match that ends first in it (ties: first in the list). A match whose last
  // byte is before `armed_from` is passed over. Not to be called again after a match.
  std::optional<Match> Feed(std::string_view text, size_t armed_from = 0);

  // Bytes at the end of the text fed so far that a match may begin in. No fewer can be held back, and no more need be.
  size_t NumHeld() const;

  const std::string& stop(size_t i) const { return stops_[i]; }
  const std::vector<std::string>& stops() const { return stops_; }
  bool empty() const { return stops_.empty(); }

 private:
  std::vector<std::string> stops_;
  std::vector<std::vector<uint32_t>> borders_;  // [stop][n]: longest proper border of its first n bytes
  std::vector<uint32_t> matched_;               // [stop]: bytes of it that the text now ends with
};

}  // namespace fastllm
