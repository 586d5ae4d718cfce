#include "api/processor_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/config/field_access.h"

namespace fastllm::api {
namespace {

Result<std::vector<std::string>> KeysOf(const JsonText& object) {
  std::vector<std::string> keys;
  if (object.text.empty()) return keys;
  const nlohmann::json json = nlohmann::json::parse(object.text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return Status::InvalidArgument("extra_args must be a JSON object, got " + FormatFieldValue(object));
  }
  keys.reserve(json.size());
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  return keys;
}

bool Shares(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return std::ranges::any_of(a, [&b](const std::string& key) { return std::ranges::find(b, key) != b.end(); });
}

}  // namespace

ProcessorTable::ProcessorTable(std::vector<std::shared_ptr<LogitsProcessor>> processors)
    : processors_(std::move(processors)) {
  arg_names_.reserve(processors_.size());
  for (const auto& processor : processors_) arg_names_.push_back(processor->ArgNames());
}

Status ProcessorTable::CheckKeys(const std::vector<std::string>& keys) const {
  std::vector<std::string> known;
  for (const auto& names : arg_names_) {
    if (names.empty()) return Status::Ok();  // it may know any key: its ValidateParams() judges
    known.insert(known.end(), names.begin(), names.end());
  }
  for (const std::string& key : keys) {
    if (std::ranges::find(known, key) != known.end()) continue;
    std::string message = "extra_args: ";
    if (known.empty()) {
      message += "'";
      message += key;
      message += "' is not known: this engine has no logits processors";
    } else {
      message += UnknownOption(key, known).message();
    }
    return Status::InvalidArgument(std::move(message));
  }
  return Status::Ok();
}

Result<std::vector<int32_t>> ProcessorTable::Choose(const SamplingParams& params) const {
  FASTLLM_ASSIGN_OR_RETURN(const std::vector<std::string> keys, KeysOf(params.extra_args));
  FASTLLM_RETURN_IF_ERROR(CheckKeys(keys));
  std::vector<int32_t> chosen;
  for (size_t i = 0; i < processors_.size(); ++i) {
    if (!arg_names_[i].empty() && !Shares(arg_names_[i], keys)) continue;
    FASTLLM_RETURN_IF_ERROR(processors_[i]->ValidateParams(params));
    chosen.push_back(static_cast<int32_t>(i));
  }
  return chosen;
}

}  // namespace fastllm::api
