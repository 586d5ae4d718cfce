#include "core/text/utf8_decoder.h"

namespace fastllm {
namespace {

// What a lead byte asks for: continuation bytes, and the range of the first of them. Unicode 15, table 3-7.
struct Lead {
  uint8_t num_continuation;  // 0: not a lead byte of a longer character
  uint8_t lo, hi;
};

Lead LeadOf(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

void Utf8Decoder::Append(std::string_view bytes, std::string* out) {
  for (const char c : bytes) {
    const uint8_t byte = static_cast<uint8_t>(c);
    if (num_missing_ > 0) {
      if (Continues(c)) {
        held_[num_held_++] = c;
        lo_ = 0x80;
        hi_ = 0xBF;
        if (--num_missing_ == 0) {
          out->append(held_, num_held_);
          num_held_ = 0;
        }
        continue;
      }
      Flush(out);  // the held part is proven invalid; this byte starts anew
    }
    if (byte < 0x80) {
      out->push_back(c);
      continue;
    }
    const Lead lead = LeadOf(byte);
    if (lead.num_continuation == 0) {
      out->append(kReplacementCharacter);
      continue;
    }
    held_[0] = c;
    num_held_ = 1;
    num_missing_ = lead.num_continuation;
    lo_ = lead.lo;
    hi_ = lead.hi;
  }
}

void Utf8Decoder::Flush(std::string* out) {
  const int replacements = replace_each_byte_ ? num_held_ : num_held_ > 0;
  for (int i = 0; i < replacements; ++i) out->append(kReplacementCharacter);
  num_held_ = 0;
  num_missing_ = 0;
}

bool IsValidUtf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const uint8_t byte = static_cast<uint8_t>(text[i++]);
    if (byte < 0x80) continue;
    Lead lead = LeadOf(byte);
    if (lead.num_continuation == 0) return false;
    for (int k = 0; k < lead.num_continuation; ++k) {
      if (i == text.size()) return false;
      const uint8_t next = static_cast<uint8_t>(text[i++]);
      if (next < lead.lo || next > lead.hi) return false;
      lead.lo = 0x80;
      lead.hi = 0xBF;
    }
  }
  return true;
}

size_t CountUtf8Chars(std::string_view text) {
  size_t chars = 0;
  for (const char c : text) chars += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return chars;
}

}  // namespace fastllm
