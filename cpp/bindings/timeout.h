// How long a caller waits, as Python says it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "bindings/errors.h"

namespace fastllm::bindings {

// Seconds to milliseconds; infinity and more than a year are a year, which fits in a clock. InvalidArgument for what is
// below 0 or no number.
inline std::chrono::milliseconds TimeoutOf(double seconds) {
  if (!(seconds >= 0)) {
    throw StatusError(Status::InvalidArgument("timeout must be at least 0, got " + std::to_string(seconds)));
  }
  return std::chrono::milliseconds(static_cast<int64_t>(std::min(seconds, 365.0 * 86400) * 1000));
}

}  // namespace fastllm::bindings
