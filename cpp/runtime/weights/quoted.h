// Quoted: text from a file, made fit for an error message.
#pragma once

#include <string>
#include <string_view>

namespace fastllm::runtime {

// 'text', with every byte outside printable ASCII as \xNN and no more than the first 200 bytes: names in a damaged
// file can be of any length and of any bytes, and messages are valid UTF-8 in one line.
std::string Quoted(std::string_view text);

}  // namespace fastllm::runtime
