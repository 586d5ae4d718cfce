// ByteRun: a run of byte tokens that is text as a whole or not at all (the rule of tokenizers' ByteFallback decoder).
#pragma once

#include <cstddef>
#include <string>

#include "core/text/utf8_decoder.h"

namespace fastllm {

// A run that is valid UTF-8 is that text; in any other run each byte becomes one U+FFFD. So valid bytes are held back
// until the run ends or breaks; once it is broken, every further byte shows at once. A run of more than kMaxHeld bytes
// counts as text up to there, so that it is shown while it grows: only if it breaks later does the text differ from
// that rule, which would take back what has been sent.
class ByteRun {
 public:
  static constexpr size_t kMaxHeld = 64;

  // The next byte of the run; appends to *out what it decides.
  void Append(char byte, std::string* out);

  // Ends the run and appends what is left of it.
  void End(std::string* out);

  // Characters that are complete but held back.
  size_t num_held_chars() const { return num_held_chars_; }

 private:
  void Break(std::string* out);

  std::string held_;  // bytes of the run that are not sent
  Utf8Decoder check_;
  std::string complete_;  // scratch: what check_ completes
  size_t num_held_chars_ = 0;
  bool is_broken_ = false;
};

}  // namespace fastllm
