#include "runtime/weights/quoted.h"

namespace fastllm::runtime {

std::string Quoted(std::string_view text) {
  constexpr size_t kLimit = 200;
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string quoted = "'";
  for (char c : text.substr(0, kLimit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      quoted += c;
    } else {
      quoted += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return quoted + (text.size() > kLimit ? "...'" : "'");
}

}  // namespace fastllm::runtime
