// Utf8Decoder: bytes in any portions -> valid UTF-8 text, without ever showing half a character.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fastllm {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// The concatenated output equals Python's bytes.decode('utf-8', errors='replace') of the concatenated input, encoded
// again: each maximal invalid part becomes one U+FFFD, or with `replace_each_byte` each byte of it. A character is held
// back until its last byte is there; an invalid byte shows at once. At most three bytes are held, so the time is linear
// in the input.
class Utf8Decoder {
 public:
  explicit Utf8Decoder(bool replace_each_byte = false) : replace_each_byte_(replace_each_byte) {}

  // Appends to *out what the new bytes complete.
  void Append(std::string_view bytes, std::string* out);

  // Ends the input: a held incomplete character becomes one U+FFFD. The decoder is then as new.
  void Flush(std::string* out);

  // True when `c` would go on a character that is held back.
  bool Continues(char c) const {
    const auto byte = static_cast<uint8_t>(c);
    return num_missing_ > 0 && byte >= lo_ && byte <= hi_;
  }
  bool is_holding() const { return num_held_ > 0; }

 private:
  char held_[4] = {};
  uint8_t num_held_ = 0;
  uint8_t num_missing_ = 0;        // continuation bytes that the held character still needs
  uint8_t lo_ = 0x80, hi_ = 0xBF;  // range of the next continuation byte (Unicode 15, table 3-7)
  bool replace_each_byte_;
};

// True when the whole of `text` is well-formed UTF-8.
bool IsValidUtf8(std::string_view text);

// Characters (code points) of a well-formed text.
size_t CountUtf8Chars(std::string_view text);

}  // namespace fastllm
