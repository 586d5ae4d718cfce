// JSON string literals, for the bytes that go to clients.
#pragma once

#include <string>
#include <string_view>

namespace fastllm {

// Appends `text`, valid UTF-8, to *out as a JSON string with its quotes; what is not ASCII stays as it is. Byte for
// byte as Python's json.dumps(text, ensure_ascii=False).
void AppendJsonString(std::string_view text, std::string* out);

}  // namespace fastllm
