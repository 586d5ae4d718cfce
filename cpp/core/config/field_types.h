// The types that fields of a configuration may have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "fastllm/field.h"
#include "fastllm/sampling_params.h"

namespace fastllm {

// What a field holds when it is set.
template <typename T>
struct Unwrapped {
  using type = T;
  static constexpr bool kOptional = false;
};
template <typename T>
struct Unwrapped<std::optional<T>> {
  using type = T;
  static constexpr bool kOptional = true;
};

template <typename T>
constexpr bool kIsInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;

// As FieldDescription::type says it.
template <typename T>
constexpr std::string_view TypeName() {
  if constexpr (std::is_same_v<T, bool>) return "bool";
  if constexpr (std::is_same_v<T, int32_t>) return "int32";
  if constexpr (std::is_same_v<T, int64_t>) return "int64";
  if constexpr (std::is_same_v<T, float>) return "float";
  if constexpr (std::is_same_v<T, std::string>) return "string";
  if constexpr (std::is_same_v<T, std::vector<int32_t>>) return "list[int32]";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "list[string]";
  if constexpr (std::is_same_v<T, std::vector<std::vector<int32_t>>>) return "list[list[int32]]";
  if constexpr (std::is_same_v<T, std::vector<LogitBias>>) return "map[int32,float]";
  if constexpr (std::is_same_v<T, JsonText>) return "json";
}

}  // namespace fastllm
