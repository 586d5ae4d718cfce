// Access to the fields of a configuration struct by name and typed value: the shared base of JSON keys, Python
// keywords, CLI flags, --help text and validation. Instantiated for EngineConfig and SamplingParams.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "fastllm/field.h"
#include "fastllm/sampling_params.h"
#include "fastllm/status.h"

namespace fastllm {

// A value as JSON, Python or a command line brings it. Monostate is null / None.
using FieldValue =
    std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<std::string>,
                 std::vector<std::vector<int64_t>>, std::vector<std::pair<int64_t, double>>, JsonText>;

// One field, described for help text and generated bindings.
struct FieldDescription {
  std::string name;          // snake_case
  std::string type;          // bool, int32, int64, float, string, list[int32], list[string], list[list[int32]],
                             // map[int32,float], json
  bool optional = false;     // null is a value of its own
  FieldValue default_value;  // as GetField() of a fresh struct
  std::string help;
  std::string room;                  // "model", "cache", "scheduler", "runtime", "sampling"
  std::vector<std::string> choices;  // empty: any string
  double lo = 0;                     // bounds as in FieldCheck; +-infinity for none
  double hi = 0;
  bool lo_open = false;
};

// Sets the field `name` of `s`, which is unchanged on error. Accepted values:
//   null   resets an optional field to "not set" and any other field to its default
//   int    for integer and float fields; refused outside the field's type and bounds, never truncated
//   double for float fields; for integer fields only when it is a whole number below 2^53
//   string for string fields, and for list[string] as a list of one; an empty list for every kind of list
// Errors: kNotFound for an unknown name, with the nearest known one; kInvalidArgument for a value of the wrong type
// or outside its limits ("top_p must be in (0, 1], got 1.5").
template <typename S>
Status SetField(S& s, std::string_view name, const FieldValue& value);

// The value of a field; kNotFound as above. A float comes back as the shortest decimal that names it (0.9, not
// 0.8999999761581421).
template <typename S>
Result<FieldValue> GetField(const S& s, std::string_view name);

// FieldDescription::type of a field; "" for an unknown name.
template <typename S>
std::string_view FieldType(std::string_view name);

// All fields in declaration order.
template <typename S>
std::vector<FieldDescription> ListFields();

// Checks every field against its FieldCheck; kInvalidArgument names the first that fails.
template <typename S>
Status ValidateFields(const S& s);

// Reads a command-line word as a value of the field: true/false/1/0/yes/no/on/off for bool, "none" for an optional,
// "1,2,3" for list[int32], "1,2;3" for list[list[int32]], "5:-1.5,7:2" for map[int32,float], the whole word as one
// element for list[string]. Bounds are left to SetField(), and JSON to whoever reads it.
Result<FieldValue> ParseFieldText(const FieldDescription& field, std::string_view text);

// The token id that the key of a map[int32,float] spells: JSON has no other keys than strings.
Result<int64_t> ParseTokenKey(std::string_view name, std::string_view text);

// The value as messages and help show it: null, true, 16, 0.9, 'auto', [1, 2], ['a', 'b']. Long strings are cut.
std::string FormatFieldValue(const FieldValue& value);

// "unknown option 'max_num_seq'; did you mean 'max_num_seqs'?", or the known names when none is near.
Status UnknownOption(std::string_view name, const std::vector<std::string>& known);

// Edits (insert, delete, replace, swap of neighbours) that turn a into b, each part edited at most once.
int EditDistance(std::string_view a, std::string_view b);

}  // namespace fastllm
