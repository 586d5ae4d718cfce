// TokenTable: the bytes each token id stands for. All that detokenisation in the engine needs of a tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fastllm {

// bytes[id] is the raw UTF-8 fragment (may be part of a character). special[id] != 0 marks control tokens that
// skip_special_tokens leaves out. Byte-level BPE: bytes are used as they are. SentencePiece: the leading-space
// mark is already a space, and byte tokens (<0x0A>) are that byte; strip_leading_space drops one space at the
// very start of a decoded text.
struct TokenTable {
  std::vector<std::string> bytes;
  std::vector<uint8_t> special;  // same length as bytes
  bool strip_leading_space = false;
};

}  // namespace fastllm
