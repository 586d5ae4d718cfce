// StopFilter: text in, what may be sent of it out: finds stop strings, and holds back what could begin one.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text/stop_matcher.h"

namespace fastllm {

// The concatenated text and the matched stop string are a function of the whole text and of which of it is armed, not
// of how it arrives:
//  - A stop string matches anywhere in the text; the one whose last character comes first wins, ties go to the first
//    in the list. Its last character must lie in armed text.
//  - The text ends before the match, or after it with `include_stop`.
//  - Without `include_stop`, just the end of the text that a stop string may begin in is held back.
class StopFilter {
 public:
  // Stop strings are valid UTF-8 and not empty.
  StopFilter(std::vector<std::string> stops, bool include_stop)
      : matcher_(std::move(stops)), include_stop_(include_stop) {}

  // Takes the next text, whole characters. Returns the stop string that it completes: Take(true, ...) is then the last
  // text, and nothing may be added any more.
  std::optional<std::string> Add(std::string_view text, bool armed);

  // Appends to *out the text that may be sent and has not been; with `all` also what is held back.
  void Take(bool all, std::string* out);

  const std::vector<std::string>& stops() const { return matcher_.stops(); }

 private:
  StopMatcher matcher_;
  std::string pending_;  // not sent
  bool include_stop_;
};

}  // namespace fastllm
