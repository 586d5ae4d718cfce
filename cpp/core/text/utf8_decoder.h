// Utf8Decoder: bytes in any portions -> valid UTF-8 text, without ever showing half a character.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fastllm {

// The concatenated output equals Python's bytes.decode('utf-8', errors='replace') of the concatenated input, encoded
// again: each maximal invalid part becomes one U+FFFD. A character is held back until its last byte is there; an
// invalid byte shows at once. At most three bytes are held, so the time is linear in the input.
class Utf8Decoder {
 public:
  // Appends to *out what the new bytes complete.
  void Append(std::string_view bytes, std::string* out);

  // Ends the input: a held incomplete character becomes one U+FFFD. The decoder is then as new.
  void Flush(std::string* out);

 private:
  char held_[4] = {};
  uint8_t num_held_ = 0;
  uint8_t num_missing_ = 0;        // continuation bytes that the held character still needs
  uint8_t lo_ = 0x80, hi_ = 0xBF;  // range of the next continuation byte (Unicode 15, table 3-7)
};

// True when the whole of `text` is well-formed UTF-8.
bool IsValidUtf8(std::string_view text);

// Characters (code points) of a well-formed text.
size_t CountUtf8Chars(std::string_view text);

}  // namespace fastllm
