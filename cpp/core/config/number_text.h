// Numbers and bounds as messages show them.
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <string>

#include "fastllm/field.h"

namespace fastllm {

// Shortest text that reads back as the same number; whole floats without exponent up to 15 digits.
template <typename T>
  requires std::integral<T> || std::floating_point<T>
std::string NumberText(T v) {
  char buffer[64];
  if constexpr (std::floating_point<T>) {
    if (v == std::floor(v) && std::abs(v) < T(1e15)) return NumberText(static_cast<long long>(v));
  }
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), v).ptr;
  return std::string(buffer, end);
}

// "in (0, 1]", "at least 1", "at most 8", "finite": what a number must be.
std::string BoundsText(double lo, double hi, bool lo_open);

}  // namespace fastllm
