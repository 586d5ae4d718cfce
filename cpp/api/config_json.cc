#include "fastllm/config_json.h"

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/config/field_access.h"

namespace fastllm {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxJsonBytes = 1 << 20;  // configuration, not data

Status WrongType(const std::string& key, const Json& value) {
  return Status::InvalidArgument(key + " cannot be " +
                                 (value.is_array() ? "a list of these elements" : value.type_name()));
}

Result<int64_t> ToInt64(const std::string& key, const Json& value) {
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Status::InvalidArgument(key + " must fit in 64 bits, got " + value.dump());
  }
  return value.get<int64_t>();
}

Result<FieldValue> ToListsValue(const std::string& key, const Json& array) {
  std::vector<std::vector<int64_t>> lists;
  for (const Json& inner : array) {
    if (!inner.is_array()) return WrongType(key, array);
    lists.emplace_back();
    for (const Json& element : inner) {
      if (!element.is_number_integer()) return WrongType(key, array);
      FASTLLM_ASSIGN_OR_RETURN(const int64_t v, ToInt64(key, element));
      lists.back().push_back(v);
    }
  }
  return FieldValue(std::move(lists));
}

Result<FieldValue> ToBiases(const std::string& key, const Json& object) {
  std::vector<std::pair<int64_t, double>> biases;
  for (const auto& [token, bias] : object.items()) {
    FASTLLM_ASSIGN_OR_RETURN(const int64_t id, ParseTokenKey(key, token));
    if (!bias.is_number()) {
      return Status::InvalidArgument(key + "[" + token + "] must be a number, got " + bias.type_name());
    }
    biases.emplace_back(id, bias.get<double>());
  }
  return FieldValue(std::move(biases));
}

Result<FieldValue> ToListValue(const std::string& key, const Json& array) {
  std::vector<int64_t> ints;
  std::vector<std::string> strings;
  if (!array.empty() && array.front().is_array()) return ToListsValue(key, array);
  for (const Json& element : array) {
    if (element.is_string()) {
      strings.push_back(element.get<std::string>());
    } else if (element.is_number_integer()) {
      FASTLLM_ASSIGN_OR_RETURN(const int64_t v, ToInt64(key, element));
      ints.push_back(v);
    } else {
      return WrongType(key, array);
    }
  }
  if (!ints.empty() && !strings.empty()) return WrongType(key, array);
  if (!strings.empty()) return FieldValue(std::move(strings));
  return FieldValue(std::move(ints));
}

// `type` is FieldDescription::type.
Result<FieldValue> ToFieldValue(const std::string& key, std::string_view type, const Json& value) {
  if (value.is_null()) return FieldValue();
  if (value.is_object() && type == "map[int32,float]") return ToBiases(key, value);
  if (value.is_object() && type == "json") {
    return FieldValue(JsonText{value.dump(-1, ' ', false, Json::error_handler_t::replace)});
  }
  if (value.is_boolean()) return FieldValue(value.get<bool>());
  if (value.is_number_integer()) {
    FASTLLM_ASSIGN_OR_RETURN(const int64_t v, ToInt64(key, value));
    return FieldValue(v);
  }
  if (value.is_number_float()) return FieldValue(value.get<double>());
  if (value.is_string()) return FieldValue(value.get<std::string>());
  if (value.is_array()) return ToListValue(key, value);
  return WrongType(key, value);
}

template <typename S>
Result<S> FromJson(std::string_view text) {
  if (text.size() > kMaxJsonBytes) {
    return Status::InvalidArgument("configuration JSON has " + std::to_string(text.size()) + " bytes, the limit is " +
                                   std::to_string(kMaxJsonBytes));
  }
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Status::InvalidArgument("configuration is not valid JSON");
  if (!json.is_object())
    return Status::InvalidArgument(std::string("configuration must be a JSON object, got ") + json.type_name());
  S out;
  for (const auto& [key, value] : json.items()) {
    FASTLLM_ASSIGN_OR_RETURN(const FieldValue field, ToFieldValue(key, FieldType<S>(key), value));
    Status set = SetField(out, key, field);
    if (set.code() == StatusCode::kNotFound) return Status::InvalidArgument(set.message());
    FASTLLM_RETURN_IF_ERROR(std::move(set));
  }
  return out;
}

template <typename S>
std::string ToJsonText(const S& s) {
  Json json = Json::object();
  for (const FieldDescription& field : ListFields<S>()) {
    const auto value = GetField(s, field.name);
    std::visit(
        [&](const auto& v) {
          using T = std::decay_t<decltype(v)>;
          if constexpr (std::is_same_v<T, std::monostate>) {
            json[field.name] = nullptr;
          } else if constexpr (std::is_same_v<T, JsonText>) {
            const Json inner = Json::parse(v.text, nullptr, /*allow_exceptions=*/false);
            json[field.name] = inner.is_discarded() ? Json() : inner;
          } else if constexpr (std::is_same_v<T, std::vector<std::pair<int64_t, double>>>) {
            json[field.name] = Json::object();
            for (const auto& [id, bias] : v) json[field.name][std::to_string(id)] = bias;
          } else {
            json[field.name] = v;
          }
        },
        value.value());
  }
  // Strings that are not UTF-8 (a path may be any bytes) are written with replacement characters.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

Result<EngineConfig> EngineConfigFromJson(std::string_view json) { return FromJson<EngineConfig>(json); }
Result<SamplingParams> SamplingParamsFromJson(std::string_view json) { return FromJson<SamplingParams>(json); }
std::string ToJson(const EngineConfig& config) { return ToJsonText(config); }
std::string ToJson(const SamplingParams& params) { return ToJsonText(params); }

}  // namespace fastllm
