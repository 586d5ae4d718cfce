// SamplingParams: how one request turns logits into tokens and when it stops. Names and meaning are vLLM's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "fastllm/field.h"

namespace fastllm {

// A token, and what is added to its logit.
struct LogitBias {
  int32_t id = 0;
  float bias = 0.0f;

  friend bool operator==(const LogitBias&, const LogitBias&) = default;
};

// A JSON object that is handed on as it is; empty: none.
struct JsonText {
  std::string text;

  friend bool operator==(const JsonText&, const JsonText&) = default;
};

// Where DRY starts afresh: text-generation-webui's and llama.cpp's list.
inline std::vector<std::string> DefaultDryBreakers() { return {"\n", ":", "\"", "*"}; }

#define FASTLLM_FIELD(type, name, def, check, help) type name = def;
struct SamplingParams {
#include "fastllm/fields/sampling_params.def"
};
#undef FASTLLM_FIELD

// Calls v(FieldInfo, field&) for every field in declaration order.
#define FASTLLM_FIELD(type, name, def, check, help) v(FieldInfo{#name, help, kRoom, check}, s.name);
template <typename S, typename V>
  requires std::is_same_v<std::remove_const_t<S>, SamplingParams>
void VisitFields(S& s, V&& v) {
  constexpr std::string_view kRoom = "sampling";
#include "fastllm/fields/sampling_params.def"
}
#undef FASTLLM_FIELD

}  // namespace fastllm
