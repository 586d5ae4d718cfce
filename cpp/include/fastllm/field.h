// The one visitor over configuration structs.
//
// A room's options are one .def list under fastllm/fields/. Including it with FASTLLM_FIELD defined makes the
// struct, and VisitFields() below makes everything else: Python keywords, JSON keys, CLI flags, help text,
// defaults and validation all come from visiting the same list, so an option is spelled in exactly one file.
//
//   FASTLLM_FIELD(type, name, default, check, help)
//
// `type` is one of bool, int32_t, int64_t, float, std::string, std::vector<int32_t>, std::vector<std::string>,
// std::vector<std::vector<int32_t>>, std::vector<LogitBias>, JsonText, or std::optional of any but the last three.
// `check` is one of the FieldCheck makers below.
#pragma once

#include <limits>
#include <string_view>

namespace fastllm {

// What a value must satisfy. Numbers: lo <= v <= hi (lo_open: lo < v), and finite. Strings: one of `choices`
// ("a|b|c", empty = anything). For vectors the bounds hold for each element; for biases, of the bias.
struct FieldCheck {
  double lo = -std::numeric_limits<double>::infinity();
  double hi = std::numeric_limits<double>::infinity();
  bool lo_open = false;
  std::string_view choices = {};
};

constexpr FieldCheck AnyValue() { return {}; }
constexpr FieldCheck AtLeast(double lo) { return {lo, std::numeric_limits<double>::infinity(), false, {}}; }
constexpr FieldCheck GreaterThan(double lo) { return {lo, std::numeric_limits<double>::infinity(), true, {}}; }
constexpr FieldCheck InRange(double lo, double hi) { return {lo, hi, false, {}}; }
constexpr FieldCheck InRangeOpenLow(double lo, double hi) { return {lo, hi, true, {}}; }
constexpr FieldCheck OneOf(std::string_view choices) {
  FieldCheck c;
  c.choices = choices;
  return c;
}

// One entry of a field list as a visitor sees it.
struct FieldInfo {
  std::string_view name;  // snake_case; the CLI flag is --name with dashes
  std::string_view help;  // one sentence
  std::string_view room;  // "model", "cache", ...
  FieldCheck check;
};

}  // namespace fastllm
