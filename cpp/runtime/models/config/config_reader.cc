#include "runtime/models/config/config_reader.h"

#include <cmath>
#include <sstream>

namespace fastllm::runtime {
namespace {

constexpr size_t kMaxShown = 60;  // characters of a wrong value in a message

std::string Shown(const nlohmann::json& value) {
  std::string s = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (s.size() > kMaxShown) s = s.substr(0, kMaxShown) + "...";
  return s;
}

std::string Range(double lo, double hi) {
  std::ostringstream s;
  s.precision(12);
  s << "[" << lo << ", " << hi << "]";
  return s.str();
}

const nlohmann::json& EmptyObject() {
  static const nlohmann::json empty = nlohmann::json::object();
  return empty;
}

}  // namespace

const nlohmann::json* ConfigReader::Find(const std::string& key) const {
  if (!object_.is_object()) return nullptr;
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void ConfigReader::Fail(Status status) const {
  if (status_->ok()) *status_ = std::move(status);
}

void ConfigReader::Bad(const std::string& key, const std::string& found, const std::string& limit) const {
  Fail(Status::InvalidArgument(where_ + ": " + key + " is " + found + "; must be " + limit));
}

void ConfigReader::Refuse(const std::string& key, const std::string& value, const std::string& limit) const {
  Fail(Status::Unimplemented(where_ + ": " + key + " is " + value + "; " + limit));
}

int64_t ConfigReader::Int(const std::string& key, int64_t lo, int64_t hi) const {
  const nlohmann::json* v = Find(key);
  if (v == nullptr) {
    Bad(key, "missing", "an integer in " + Range(static_cast<double>(lo), static_cast<double>(hi)));
    return lo;
  }
  // 1e6 and 4096.0 are integers too.
  const bool whole =
      v->is_number_integer() || (v->is_number_float() && v->get<double>() == std::floor(v->get<double>()));
  const double d = whole ? v->get<double>() : 0.0;
  if (!whole || d < static_cast<double>(lo) || d > static_cast<double>(hi)) {
    Bad(key, Shown(*v), "an integer in " + Range(static_cast<double>(lo), static_cast<double>(hi)));
    return lo;
  }
  return v->get<int64_t>();
}

int64_t ConfigReader::IntOr(const std::string& key, int64_t fallback, int64_t lo, int64_t hi) const {
  return Has(key) ? Int(key, lo, hi) : fallback;
}

double ConfigReader::Number(const std::string& key, double lo, double hi) const {
  const nlohmann::json* v = Find(key);
  if (v == nullptr || !v->is_number() || !(v->get<double>() >= lo && v->get<double>() <= hi)) {
    Bad(key, v == nullptr ? "missing" : Shown(*v), "a number in " + Range(lo, hi));
    return lo;
  }
  return v->get<double>();
}

double ConfigReader::NumberOr(const std::string& key, double fallback, double lo, double hi) const {
  return Has(key) ? Number(key, lo, hi) : fallback;
}

bool ConfigReader::BoolOr(const std::string& key, bool fallback) const {
  const nlohmann::json* v = Find(key);
  if (v == nullptr) return fallback;
  if (!v->is_boolean()) {
    Bad(key, Shown(*v), "true or false");
    return fallback;
  }
  return v->get<bool>();
}

std::string ConfigReader::String(const std::string& key) const {
  const nlohmann::json* v = Find(key);
  if (v == nullptr || !v->is_string()) {
    Bad(key, v == nullptr ? "missing" : Shown(*v), "a string");
    return "";
  }
  return v->get<std::string>();
}

std::string ConfigReader::StringOr(const std::string& key, const std::string& fallback) const {
  return Has(key) ? String(key) : fallback;
}

ConfigReader ConfigReader::Object(const std::string& key) const {
  const nlohmann::json* v = Find(key);
  if (v != nullptr && !v->is_object()) Bad(key, Shown(*v), "an object");
  const bool usable = v != nullptr && v->is_object();
  return ConfigReader(usable ? *v : EmptyObject(), where_ + ": " + key, status_);
}

}  // namespace fastllm::runtime
