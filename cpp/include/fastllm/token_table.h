// TokenTable: the bytes each token id stands for. All that detokenisation in the engine needs of a tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace fastllm {

// How long tokens have their first_bytes.
enum class FirstBytesUntil : uint8_t {
  kToken,    // one token: the first that is not left out (tokenizers' Metaspace and WordPiece)
  kBytes,    // until a token has had `bytes` (sentencepiece)
  kVisible,  // until a token has had first_bytes (sentencepiece with remove_extra_whitespaces)
};

// What bytes that are not valid UTF-8 become.
enum class InvalidBytes : uint8_t {
  kReplacePart,  // each maximal invalid part one U+FFFD (byte-level BPE; Python's errors='replace')
  kReplaceEach,  // each byte of it one U+FFFD; a token that is left out ends a character (sentencepiece)
  kReplaceRun,   // each byte of a run of byte_token ids that is not valid as a whole (tokenizers' ByteFallback)
};

// bytes[id] is the raw UTF-8 fragment (may be part of a character). special[id] != 0 marks control tokens that
// skip_special_tokens leaves out. Byte-level BPE: bytes are used as they are. SentencePiece: the leading-space
// mark is already a space, and byte tokens (<0x0A>) are that byte; strip_leading_space drops one space at the
// very start of a decoded text. An id whose bytes and first_bytes are empty is no token and has no text.
struct TokenTable {
  std::vector<std::string> bytes;
  std::vector<uint8_t> special;  // same length as bytes
  bool strip_leading_space = false;
  // Empty, or as long as bytes: what tokens at the very start of a text stand for in place of `bytes`.
  std::vector<std::string> first_bytes;
  FirstBytesUntil first_bytes_until = FirstBytesUntil::kToken;
  InvalidBytes invalid_bytes = InvalidBytes::kReplacePart;
  std::vector<uint8_t> byte_token;  // kReplaceRun only, as long as bytes: != 0 where bytes is one raw byte
  // Text of added tokens, for spaces_between_special_tokens = false: one that follows another is written as this.
  std::unordered_map<int32_t, std::string> added;
};

}  // namespace fastllm
