// Status -> Python exceptions. The classes live in fastllm_core/errors.py.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "fastllm/status.h"

namespace fastllm::bindings {

// Carries a Status to the translator that RegisterErrors() installs.
class StatusError : public std::exception {
 public:
  explicit StatusError(Status status) : status_(std::move(status)) {}
  const char* what() const noexcept override { return status_.message().c_str(); }
  const Status& status() const { return status_; }

 private:
  Status status_;
};

// An option, key or keyword that does not exist; becomes UnknownOptionError.
class UnknownOptionError : public std::exception {
 public:
  explicit UnknownOptionError(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

inline void ThrowIfError(Status status) {
  if (!status.ok()) throw StatusError(std::move(status));
}

template <typename T>
T ValueOrThrow(Result<T> result) {
  if (!result.ok()) throw StatusError(result.status());
  return std::move(result).value();
}

// Installs the translator for this module. Call once, from the module's init.
void RegisterErrors();

}  // namespace fastllm::bindings
