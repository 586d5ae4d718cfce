// FASTLLM_CHECK(cond, message): an invariant of ours. A broken one throws InternalError, which the engine thread
// turns into a poisoned engine; it never calls abort() in a host's process.
#pragma once

#include <stdexcept>
#include <string>

namespace fastllm {

class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void ThrowCheckFailure(const char* file, int line, const char* condition, const std::string& message);

}  // namespace fastllm

#define FASTLLM_CHECK(cond, message)                                               \
  do {                                                                             \
    if (!(cond)) ::fastllm::ThrowCheckFailure(__FILE__, __LINE__, #cond, message); \
  } while (0)
