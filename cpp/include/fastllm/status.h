// Status and Result<T>: how every fallible call outside the invariants reports failure.
//
// Three tiers of errors (cpp/docs/errors.md): bad input and I/O come back as a Status whose message names
// the offending value and the limit; broken invariants throw InternalError (base/check.h) and fail the
// engine, never the process; torch exceptions are caught at the executor edge and turned into a Status.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "fastllm/export.h"

namespace fastllm {

enum class StatusCode : int {
  kOk = 0,
  kInvalidArgument,     // a value the caller passed is outside its limits
  kNotFound,            // a file, model, request or key that does not exist
  kDataLoss,            // a file that is truncated or corrupt
  kUnimplemented,       // valid in itself, not supported by this build
  kResourceExhausted,   // a queue or pool is full; the caller may retry later
  kFailedPrecondition,  // the object is in a state that forbids the call
  kUnavailable,         // the engine is stopped or poisoned
  kInternal,            // a defect of ours
  kDeadlineExceeded,    // a request did not end within its time limit
};

// Lower-case name of a code, for messages ("invalid_argument").
FASTLLM_API const char* StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return Status(); }
  static Status InvalidArgument(std::string m) { return {StatusCode::kInvalidArgument, std::move(m)}; }
  static Status NotFound(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
  static Status DataLoss(std::string m) { return {StatusCode::kDataLoss, std::move(m)}; }
  static Status Unimplemented(std::string m) { return {StatusCode::kUnimplemented, std::move(m)}; }
  static Status ResourceExhausted(std::string m) { return {StatusCode::kResourceExhausted, std::move(m)}; }
  static Status FailedPrecondition(std::string m) { return {StatusCode::kFailedPrecondition, std::move(m)}; }
  static Status Unavailable(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }
  static Status Internal(std::string m) { return {StatusCode::kInternal, std::move(m)}; }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // After how many milliseconds the call may succeed; 0: nothing is known. Set for a full queue (Engine::Submit).
  int64_t retry_after_ms() const { return retry_after_ms_; }
  Status&& WithRetryAfter(int64_t ms) && {
    retry_after_ms_ = ms;
    return std::move(*this);
  }
  // "invalid_argument: message", or "ok".
  FASTLLM_API std::string ToString() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  int64_t retry_after_ms_ = 0;
};

// A value or the Status that says why there is none. value() on an error throws std::bad_variant_access.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : v_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : v_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(v_); }
  Status status() const { return ok() ? Status::Ok() : std::get<Status>(v_); }
  T& value() & { return std::get<T>(v_); }
  const T& value() const& { return std::get<T>(v_); }
  T&& value() && { return std::get<T>(std::move(v_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> v_;
};

}  // namespace fastllm

// Returns the Status of `expr` from the enclosing function when it is an error.
#define FASTLLM_RETURN_IF_ERROR(expr)                       \
  do {                                                      \
    if (::fastllm::Status _s = (expr); !_s.ok()) return _s; \
  } while (0)

#define FASTLLM_CONCAT_INNER(a, b) a##b
#define FASTLLM_CONCAT(a, b) FASTLLM_CONCAT_INNER(a, b)
// FASTLLM_ASSIGN_OR_RETURN(auto x, Call()): moves the value into x, or returns the error.
#define FASTLLM_ASSIGN_OR_RETURN(decl, expr)                                              \
  auto FASTLLM_CONCAT(_r_, __LINE__) = (expr);                                            \
  if (!FASTLLM_CONCAT(_r_, __LINE__).ok()) return FASTLLM_CONCAT(_r_, __LINE__).status(); \
  decl = std::move(FASTLLM_CONCAT(_r_, __LINE__)).value()
