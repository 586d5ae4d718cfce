#include "api/json_check.h"

#include <nlohmann/json.hpp>
#include <string>

#include "core/config/field_access.h"

namespace fastllm::api {

Status CheckJsonObject(const char* name, const JsonText& json) {
  if (json.text.empty()) return Status::Ok();
  const auto value = nlohmann::json::parse(json.text, nullptr, /*allow_exceptions=*/false);
  if (value.is_object()) return Status::Ok();
  return Status::InvalidArgument(std::string(name) + " must be a JSON object, got " + FormatFieldValue(json));
}

}  // namespace fastllm::api
