#include "core/stream/json_text.h"

#include <cstddef>

namespace fastllm {
namespace {

bool IsPlain(char c) { return static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\'; }

void AppendEscape(char c, std::string* out) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out->push_back('\\');
  switch (c) {
    case '"':
    case '\\': out->push_back(c); return;
    case '\b': out->push_back('b'); return;
    case '\f': out->push_back('f'); return;
    case '\n': out->push_back('n'); return;
    case '\r': out->push_back('r'); return;
    case '\t': out->push_back('t'); return;
    default:
      out->append("u00");
      out->push_back(kHex[static_cast<size_t>(c) >> 4]);
      out->push_back(kHex[static_cast<size_t>(c) & 15]);
  }
}

}  // namespace

void AppendJsonString(std::string_view text, std::string* out) {
  out->push_back('"');
  size_t begin = 0;  // of what can be copied as it is
  for (size_t i = 0; i < text.size(); ++i) {
    if (IsPlain(text[i])) continue;
    out->append(text, begin, i - begin);
    AppendEscape(text[i], out);
    begin = i + 1;
  }
  out->append(text, begin);
  out->push_back('"');
}

}  // namespace fastllm
