// ConfigReader: range-checked values of a JSON object. The first problem is kept, so that a parser reads straight
// through and asks status() once.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "fastllm/status.h"

namespace fastllm::runtime {

class ConfigReader {
 public:
  // `where` begins every message ("config.json"). The object must outlive the reader and the readers made from it.
  ConfigReader(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)), status_(std::make_shared<Status>()) {}

  // A key that is absent or null counts as missing. The plain forms record an error for it.
  bool Has(const std::string& key) const { return Find(key) != nullptr; }
  int64_t Int(const std::string& key, int64_t lo, int64_t hi) const;
  int64_t IntOr(const std::string& key, int64_t fallback, int64_t lo, int64_t hi) const;
  double Number(const std::string& key, double lo, double hi) const;
  double NumberOr(const std::string& key, double fallback, double lo, double hi) const;
  bool BoolOr(const std::string& key, bool fallback) const;
  std::string String(const std::string& key) const;
  std::string StringOr(const std::string& key, const std::string& fallback) const;

  // The value itself, or null.
  const nlohmann::json* Find(const std::string& key) const;

  // A reader of the object under `key`, sharing this one's status; of an empty object when missing.
  ConfigReader Object(const std::string& key) const;

  void Fail(Status status) const;
  void Refuse(const std::string& key, const std::string& value, const std::string& limit) const;  // kUnimplemented
  const Status& status() const { return *status_; }
  const std::string& where() const { return where_; }

 private:
  ConfigReader(const nlohmann::json& object, std::string where, std::shared_ptr<Status> status)
      : object_(object), where_(std::move(where)), status_(std::move(status)) {}

  void Bad(const std::string& key, const std::string& found, const std::string& limit) const;

  const nlohmann::json& object_;
  std::string where_;
  std::shared_ptr<Status> status_;
};

}  // namespace fastllm::runtime
