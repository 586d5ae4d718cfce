#include "core/config/field_access.h"

#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>

#include "core/config/field_types.h"
#include "core/config/number_text.h"
#include "fastllm/config.h"
#include "fastllm/sampling_params.h"

namespace fastllm {
namespace {

std::vector<std::string> SplitChoices(std::string_view choices) {
  std::vector<std::string> out;
  while (!choices.empty()) {
    const size_t bar = std::min(choices.find('|'), choices.size());
    out.emplace_back(choices.substr(0, bar));
    choices.remove_prefix(std::min(bar + 1, choices.size()));
  }
  return out;
}

Status Refuse(const std::string& name, const std::string& must_be, const std::string& got) {
  return Status::InvalidArgument(name + " must be " + must_be + ", got " + got);
}

template <typename T>
Status CheckFloat(const std::string& name, const FieldCheck& check, T v) {
  // Bounds are compared in the type of the value, so that a bound of 0.9 admits 0.9f.
  const T lo = static_cast<T>(check.lo), hi = static_cast<T>(check.hi);
  const bool ok = std::isfinite(v) && (check.lo_open ? v > lo : v >= lo) && v <= hi;
  if (ok) return Status::Ok();
  const std::string rule = BoundsText(check.lo, check.hi, check.lo_open);
  const bool one_sided = std::isinf(check.lo) != std::isinf(check.hi);
  return Refuse(name, !std::isfinite(v) && one_sided ? "finite and " + rule : rule, NumberText(v));
}

// The limits of an integer field: its check within its type.
template <typename T>
Status CheckInteger(const std::string& name, const FieldCheck& check, int64_t v) {
  constexpr int64_t kMin = std::numeric_limits<T>::min(), kMax = std::numeric_limits<T>::max();
  const bool in_type = v >= kMin && v <= kMax;
  const bool in_bounds = (check.lo_open ? double(v) > check.lo : double(v) >= check.lo) && double(v) <= check.hi;
  if (in_type && in_bounds) return Status::Ok();
  if (in_type) return Refuse(name, BoundsText(check.lo, check.hi, check.lo_open), NumberText(v));
  const int64_t lo = std::isfinite(check.lo) ? static_cast<int64_t>(check.lo) + check.lo_open : kMin;
  const int64_t hi = std::isfinite(check.hi) ? static_cast<int64_t>(check.hi) : kMax;
  return Refuse(name, "in [" + NumberText(lo) + ", " + NumberText(hi) + "]", NumberText(v));
}

Status CheckString(const std::string& name, const FieldCheck& check, const std::string& v) {
  const std::vector<std::string> choices = SplitChoices(check.choices);
  if (choices.empty()) return Status::Ok();
  std::string list;
  for (const std::string& choice : choices) {
    if (choice == v) return Status::Ok();
    if (!list.empty()) list += ", ";
    list += FormatFieldValue(choice);
  }
  return Refuse(name, "one of " + list, FormatFieldValue(v));
}

std::string Indexed(std::string_view name, int64_t index) {
  std::string out(name);
  out += '[';
  out += std::to_string(index);
  out += ']';
  return out;
}

Status CheckBias(const std::string& name, const FieldCheck& check, const LogitBias& v) {
  FASTLLM_RETURN_IF_ERROR(CheckInteger<int32_t>(name + " token id", AtLeast(0), v.id));
  return CheckFloat(Indexed(name, v.id), check, v.bias);
}

template <typename T>
Status CheckValue(const std::string& name, const FieldCheck& check, const T& v) {
  if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, JsonText>) {
    return Status::Ok();
  } else if constexpr (std::is_same_v<T, std::vector<LogitBias>>) {
    for (const LogitBias& bias : v) FASTLLM_RETURN_IF_ERROR(CheckBias(name, check, bias));
    return Status::Ok();
  } else if constexpr (kIsInteger<T>) {
    return CheckInteger<T>(name, check, v);
  } else if constexpr (std::is_same_v<T, float>) {
    return CheckFloat(name, check, v);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return CheckString(name, check, v);
  } else if constexpr (Unwrapped<T>::kOptional) {
    return v ? CheckValue(name, check, *v) : Status::Ok();
  } else {
    for (size_t i = 0; i < v.size(); ++i) {
      FASTLLM_RETURN_IF_ERROR(CheckValue(Indexed(name, static_cast<int64_t>(i)), check, v[i]));
    }
    return Status::Ok();
  }
}

// Convert(): FieldValue -> T for a value that is not null.
Status Convert(const FieldInfo& info, const FieldValue& value, bool* out) {
  const bool* v = std::get_if<bool>(&value);
  if (v == nullptr) return Refuse(std::string(info.name), "true or false", FormatFieldValue(value));
  *out = *v;
  return Status::Ok();
}

template <typename T>
  requires kIsInteger<T>
Status Convert(const FieldInfo& info, const FieldValue& value, T* out) {
  constexpr double kExact = 9007199254740992.0;  // 2^53: below it every whole double is one integer
  int64_t v = 0;
  if (const int64_t* i = std::get_if<int64_t>(&value)) {
    v = *i;
  } else if (const double* d = std::get_if<double>(&value); d && *d == std::floor(*d) && std::abs(*d) < kExact) {
    v = static_cast<int64_t>(*d);
  } else {
    return Refuse(std::string(info.name), "an integer", FormatFieldValue(value));
  }
  FASTLLM_RETURN_IF_ERROR(CheckInteger<T>(std::string(info.name), info.check, v));
  *out = static_cast<T>(v);
  return Status::Ok();
}

Status Convert(const FieldInfo& info, const FieldValue& value, float* out) {
  double v = 0;
  if (const double* d = std::get_if<double>(&value)) {
    v = *d;
  } else if (const int64_t* i = std::get_if<int64_t>(&value)) {
    v = static_cast<double>(*i);
  } else {
    return Refuse(std::string(info.name), "a number", FormatFieldValue(value));
  }
  FASTLLM_RETURN_IF_ERROR(CheckFloat(std::string(info.name), info.check, v));
  // Rounding to float may leave the bounds (1e-50 becomes 0), so Assign() checks the result too.
  if (std::abs(v) > std::numeric_limits<float>::max()) {
    return Refuse(std::string(info.name), "within the range of a 32-bit float", NumberText(v));
  }
  *out = static_cast<float>(v);
  return Status::Ok();
}

Status Convert(const FieldInfo& info, const FieldValue& value, std::string* out) {
  const std::string* v = std::get_if<std::string>(&value);
  if (v == nullptr) return Refuse(std::string(info.name), "a string", FormatFieldValue(value));
  *out = *v;
  return Status::Ok();
}

Status ConvertIds(std::string_view name, const FieldCheck& check, const std::vector<int64_t>& list,
                  std::vector<int32_t>* out) {
  out->clear();
  out->reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    // The name is made for an error alone: a list may be long.
    if (const Status status = CheckInteger<int32_t>("", check, list[i]); !status.ok()) {
      return CheckInteger<int32_t>(Indexed(name, static_cast<int64_t>(i)), check, list[i]);
    }
    out->push_back(static_cast<int32_t>(list[i]));
  }
  return Status::Ok();
}

Status Convert(const FieldInfo& info, const FieldValue& value, std::vector<int32_t>* out) {
  out->clear();
  if (const auto* strings = std::get_if<std::vector<std::string>>(&value); strings && strings->empty()) {
    return Status::Ok();
  }
  const auto* list = std::get_if<std::vector<int64_t>>(&value);
  if (list == nullptr) return Refuse(std::string(info.name), "a list of integers", FormatFieldValue(value));
  return ConvertIds(info.name, info.check, *list, out);
}

Status Convert(const FieldInfo& info, const FieldValue& value, std::vector<std::vector<int32_t>>* out) {
  out->clear();
  if (const auto* empty = std::get_if<std::vector<int64_t>>(&value); empty && empty->empty()) return Status::Ok();
  const auto* lists = std::get_if<std::vector<std::vector<int64_t>>>(&value);
  if (lists == nullptr) return Refuse(std::string(info.name), "a list of lists of integers", FormatFieldValue(value));
  out->resize(lists->size());
  for (size_t i = 0; i < lists->size(); ++i) {
    const std::string name = Indexed(info.name, static_cast<int64_t>(i));
    FASTLLM_RETURN_IF_ERROR(ConvertIds(name, info.check, (*lists)[i], &(*out)[i]));
  }
  return Status::Ok();
}

Status Convert(const FieldInfo& info, const FieldValue& value, std::vector<LogitBias>* out) {
  const auto* biases = std::get_if<std::vector<std::pair<int64_t, double>>>(&value);
  const std::string name(info.name);
  if (biases == nullptr) return Refuse(name, "a map from token ids to numbers", FormatFieldValue(value));
  out->clear();
  out->reserve(biases->size());
  for (const auto& [id, bias] : *biases) {
    FASTLLM_RETURN_IF_ERROR(CheckInteger<int32_t>(name + " token id", AtLeast(0), id));
    FASTLLM_RETURN_IF_ERROR(CheckFloat(Indexed(name, id), info.check, bias));
    out->push_back({static_cast<int32_t>(id), static_cast<float>(bias)});
  }
  return Status::Ok();
}

Status Convert(const FieldInfo& info, const FieldValue& value, JsonText* out) {
  const auto* json = std::get_if<JsonText>(&value);
  if (json == nullptr) return Refuse(std::string(info.name), "a JSON object", FormatFieldValue(value));
  *out = *json;
  return Status::Ok();
}

Status Convert(const FieldInfo& info, const FieldValue& value, std::vector<std::string>* out) {
  const auto* ints = std::get_if<std::vector<int64_t>>(&value);
  if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
    *out = *list;
  } else if (const auto* one = std::get_if<std::string>(&value)) {
    *out = {*one};
  } else if (ints && ints->empty()) {
    out->clear();
  } else {
    return Refuse(std::string(info.name), "a string or a list of strings", FormatFieldValue(value));
  }
  return Status::Ok();
}

// Convert(), null and the check of the result. `fallback` is the field's default.
template <typename T>
Status Assign(const FieldInfo& info, const FieldValue& value, const T& fallback, T* field) {
  using Plain = typename Unwrapped<T>::type;
  if (std::holds_alternative<std::monostate>(value)) {
    if constexpr (Unwrapped<T>::kOptional) {
      field->reset();
    } else {
      *field = fallback;
    }
    return Status::Ok();
  }
  Plain converted{};
  FASTLLM_RETURN_IF_ERROR(Convert(info, value, &converted));
  FASTLLM_RETURN_IF_ERROR(CheckValue(std::string(info.name), info.check, converted));
  *field = std::move(converted);
  return Status::Ok();
}

// The double whose shortest decimal is that of the float.
double ShortestDouble(float v) {
  double shortest = v;
  const std::string text = NumberText(v);
  if (std::isfinite(v)) std::from_chars(text.data(), text.data() + text.size(), shortest);
  return shortest;
}

template <typename T>
FieldValue ToFieldValue(const T& v) {
  if constexpr (Unwrapped<T>::kOptional) {
    return v ? ToFieldValue(*v) : FieldValue();
  } else if constexpr (kIsInteger<T>) {
    return static_cast<int64_t>(v);
  } else if constexpr (std::is_same_v<T, float>) {
    return ShortestDouble(v);
  } else if constexpr (std::is_same_v<T, std::vector<int32_t>>) {
    return std::vector<int64_t>(v.begin(), v.end());
  } else if constexpr (std::is_same_v<T, std::vector<std::vector<int32_t>>>) {
    std::vector<std::vector<int64_t>> lists;
    lists.reserve(v.size());
    for (const auto& list : v) lists.emplace_back(list.begin(), list.end());
    return lists;
  } else if constexpr (std::is_same_v<T, std::vector<LogitBias>>) {
    std::vector<std::pair<int64_t, double>> biases;
    biases.reserve(v.size());
    for (const LogitBias& b : v) biases.emplace_back(b.id, ShortestDouble(b.bias));
    return biases;
  } else if constexpr (std::is_same_v<T, JsonText>) {
    return v.text.empty() ? FieldValue() : FieldValue(v);
  } else {
    return v;
  }
}

// What the visitors below do with a field, once for each type of field and not for each field: inlined into the visit
// of a hundred fields these were a third of the time that core takes to compile.
template <typename T>
[[gnu::noinline]] Status AssignField(const FieldInfo& info, const FieldValue& value, const void* fallback, T* field) {
  return Assign(info, value, *static_cast<const T*>(fallback), field);
}

template <typename T>
[[gnu::noinline]] void ReadField(const T& field, std::optional<FieldValue>* value) {
  *value = ToFieldValue(field);
}

template <typename T>
[[gnu::noinline]] void CheckField(const FieldInfo& info, const T& field, Status* status) {
  *status = CheckValue(std::string(info.name), info.check, field);
}

template <typename T>
[[gnu::noinline]] void DescribeField(const FieldInfo& info, const T& field, std::vector<FieldDescription>* out) {
  FieldDescription d;
  d.name = info.name;
  d.type = TypeName<typename Unwrapped<T>::type>();
  d.optional = Unwrapped<T>::kOptional;
  d.default_value = ToFieldValue(field);
  d.help = info.help;
  d.room = info.room;
  d.choices = SplitChoices(info.check.choices);
  d.lo = info.check.lo;
  d.hi = info.check.hi;
  d.lo_open = info.check.lo_open;
  out->push_back(std::move(d));
}

template <typename S>
const S& Defaults() {
  static const S defaults;
  return defaults;
}

template <typename S>
Status UnknownField(std::string_view name) {
  std::vector<std::string> known;
  VisitFields(Defaults<S>(), [&](const FieldInfo& info, const auto&) { known.emplace_back(info.name); });
  return UnknownOption(name, known);
}

}  // namespace

template <typename S>
Status SetField(S& s, std::string_view name, const FieldValue& value) {
  const void* fallback = nullptr;
  VisitFields(Defaults<S>(), [&](const FieldInfo& info, const auto& field) {
    if (info.name == name) fallback = &field;
  });
  if (fallback == nullptr) return UnknownField<S>(name);
  Status status;
  VisitFields(s, [&](const FieldInfo& info, auto& field) {
    if (info.name == name) status = AssignField(info, value, fallback, &field);
  });
  return status;
}

template <typename S>
Result<FieldValue> GetField(const S& s, std::string_view name) {
  std::optional<FieldValue> value;
  VisitFields(s, [&](const FieldInfo& info, const auto& field) {
    if (info.name == name) ReadField(field, &value);
  });
  if (!value) return UnknownField<S>(name);
  return *std::move(value);
}

template <typename S>
std::string_view FieldType(std::string_view name) {
  std::string_view type;
  VisitFields(Defaults<S>(), [&](const FieldInfo& info, const auto& field) {
    using T = std::remove_cvref_t<decltype(field)>;
    if (info.name == name) type = TypeName<typename Unwrapped<T>::type>();
  });
  return type;
}

template <typename S>
std::vector<FieldDescription> ListFields() {
  std::vector<FieldDescription> out;
  VisitFields(Defaults<S>(), [&](const FieldInfo& info, const auto& field) { DescribeField(info, field, &out); });
  return out;
}

template <typename S>
Status ValidateFields(const S& s) {
  Status first;
  VisitFields(s, [&](const FieldInfo& info, const auto& field) {
    if (first.ok()) CheckField(info, field, &first);
  });
  return first;
}

#define FASTLLM_INSTANTIATE(S)                                          \
  template Status SetField<S>(S&, std::string_view, const FieldValue&); \
  template Result<FieldValue> GetField<S>(const S&, std::string_view);  \
  template std::string_view FieldType<S>(std::string_view);             \
  template std::vector<FieldDescription> ListFields<S>();               \
  template Status ValidateFields<S>(const S&);
FASTLLM_INSTANTIATE(EngineConfig)
FASTLLM_INSTANTIATE(SamplingParams)
#undef FASTLLM_INSTANTIATE

}  // namespace fastllm
