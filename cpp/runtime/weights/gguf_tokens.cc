#include "runtime/weights/gguf_tokens.h"

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/weights/quoted.h"

namespace fastllm::runtime {
namespace {

// tokenizer.ggml.token_type. Files leave it out when all tokens are normal.
enum TokenType : int64_t {
  kUndefined = 0,
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// Code points at and above this are no stand-ins: 256 bytes, of which 68 are moved up to 256...323.
constexpr uint32_t kStandInEnd = 256 + 68;

// Byte-level BPE writes each byte as one printable character: the printable ones of Latin-1 stand for themselves, the
// other 68 bytes, in rising order, for the characters from U+0100 on. Gives the byte of each character, or -1.
std::array<int16_t, kStandInEnd> ByteOfStandIn() {
  std::array<int16_t, kStandInEnd> byte_of;
  byte_of.fill(-1);
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    byte_of[printable ? byte : next++] = static_cast<int16_t>(byte);
  }
  return byte_of;
}

// The bytes a byte-level token stands for; nullopt when a character of it is no stand-in (one- and two-byte UTF-8
// covers all of them).
std::optional<std::string> DecodeByteLevel(std::string_view token) {
  static const std::array<int16_t, kStandInEnd> kByteOf = ByteOfStandIn();
  std::string bytes;
  for (size_t i = 0; i < token.size(); ++i) {
    uint32_t code = static_cast<uint8_t>(token[i]);
    if (code >= 0x80) {
      if ((code & 0xE0u) != 0xC0u || i + 1 == token.size()) return std::nullopt;
      const uint32_t next = static_cast<uint8_t>(token[++i]);
      if ((next & 0xC0u) != 0x80u) return std::nullopt;
      code = (code & 0x1Fu) << 6 | (next & 0x3Fu);
      if (code < 0x80) return std::nullopt;  // overlong
    }
    if (code >= kStandInEnd || kByteOf[code] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kByteOf[code]));
  }
  return bytes;
}

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

std::string DecodeSentencePiece(std::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    if (token.substr(i).starts_with(kSpaceMark)) {
      bytes.push_back(' ');
      i += kSpaceMark.size();
    } else {
      bytes.push_back(token[i++]);
    }
  }
  return bytes;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// "<0x0A>" to "\n"; nullopt for text of any other form.
std::optional<std::string> DecodeByteToken(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const int high = HexDigit(token[3]);
  const int low = HexDigit(token[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return std::string(1, static_cast<char>(high << 4 | low));
}

// nullptr when the key is absent; kDataLoss when its value is of another kind.
template <typename T>
Result<const T*> Lookup(const GgufMetadata& metadata, const std::string& key, const char* kind) {
  const auto it = metadata.find(key);
  if (it == metadata.end()) return static_cast<const T*>(nullptr);
  if (const T* value = std::get_if<T>(&it->second)) return value;
  return Status::DataLoss("metadata " + Quoted(key) + " is not " + kind);
}

// Bytes of one token; nullopt for a byte token that is not of the form <0xNN>.
std::optional<std::string> TokenBytes(const std::string& token, int64_t type, bool sentence_piece) {
  switch (type) {
    case kUnknown:
    case kControl: return token;
    case kUnused: return std::string();
    case kByte: return DecodeByteToken(token);
    case kUserDefined: return sentence_piece ? DecodeSentencePiece(token) : token;
    default: return sentence_piece ? DecodeSentencePiece(token) : DecodeByteLevel(token).value_or(token);
  }
}

// What a token is at the start of a text, where sentencepiece takes off the space that it put before the text.
std::string FirstBytes(const std::string& token, int64_t type, const std::string& bytes) {
  const bool is_text = type != kUnknown && type != kControl && type != kByte;
  return is_text && token.starts_with(kSpaceMark) && !bytes.empty() ? bytes.substr(1) : bytes;
}

// `space_prefix`: the encoder puts a space before a text.
Status FillTable(const std::vector<std::string>& tokens, const std::vector<int64_t>* types, bool sentence_piece,
                 bool space_prefix, TokenTable* table) {
  table->bytes.reserve(tokens.size());
  table->special.reserve(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string& token = tokens[id];
    int64_t type = types ? (*types)[id] : kNormal;
    if (!types && sentence_piece && DecodeByteToken(token)) type = kByte;
    if (type < kUndefined || type > kByte) {
      return Status::DataLoss("token " + std::to_string(id) + " has the token_type " + std::to_string(type) +
                              "; 0 to 6 are known");
    }
    std::optional<std::string> bytes = TokenBytes(token, type, sentence_piece);
    if (!bytes) {
      return Status::DataLoss("token " + std::to_string(id) + " is a byte token, but its text " + Quoted(token) +
                              " is not of the form <0xNN>");
    }
    if (space_prefix) table->first_bytes.push_back(FirstBytes(token, type, *bytes));
    table->bytes.push_back(std::move(*bytes));
    table->special.push_back(type == kControl || type == kUnknown);
  }
  return Status::Ok();
}

}  // namespace

Result<TokenTable> TokenTableFromGguf(const GgufMetadata& metadata) {
  FASTLLM_ASSIGN_OR_RETURN(const std::string* model, Lookup<std::string>(metadata, "tokenizer.ggml.model", "a string"));
  FASTLLM_ASSIGN_OR_RETURN(const auto* tokens,
                           Lookup<std::vector<std::string>>(metadata, "tokenizer.ggml.tokens", "an array of strings"));
  FASTLLM_ASSIGN_OR_RETURN(const auto* types,
                           Lookup<std::vector<int64_t>>(metadata, "tokenizer.ggml.token_type", "an array of integers"));
  FASTLLM_ASSIGN_OR_RETURN(const bool* space_prefix,
                           Lookup<bool>(metadata, "tokenizer.ggml.add_space_prefix", "a bool"));
  if (!model) return Status::NotFound("the GGUF file has no tokenizer (no tokenizer.ggml.model)");
  // Either name says that there is none, as files of models without text do.
  if (*model == "no_vocab" || *model == "none") {
    return Status::NotFound("the GGUF file has no tokenizer (tokenizer.ggml.model is " + Quoted(*model) + ")");
  }
  const bool sentence_piece = *model == "llama";
  if (!sentence_piece && *model != "gpt2") {
    return Status::Unimplemented("tokenizer.ggml.model is " + Quoted(*model) + "; 'gpt2' and 'llama' are read");
  }
  if (!tokens || tokens->empty()) return Status::NotFound("the GGUF file has no tokens (tokenizer.ggml.tokens)");
  if (types && types->size() != tokens->size()) {
    return Status::DataLoss("tokenizer.ggml.token_type has " + std::to_string(types->size()) + " entries for " +
                            std::to_string(tokens->size()) + " tokens");
  }
  TokenTable table;
  // Byte-level decoding never takes a space off.
  const bool strips = sentence_piece && (space_prefix == nullptr || *space_prefix);
  FASTLLM_RETURN_IF_ERROR(FillTable(*tokens, types, sentence_piece, strips, &table));
  if (sentence_piece) {
    table.first_bytes_until = FirstBytesUntil::kBytes;
    table.invalid_bytes = InvalidBytes::kReplaceEach;
  }
  return table;
}

}  // namespace fastllm::runtime
