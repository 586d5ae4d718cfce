#include "core/base/check.h"

namespace fastllm {

void ThrowCheckFailure(const char* file, int line, const char* condition, const std::string& message) {
  throw InternalError(std::string(file) + ":" + std::to_string(line) + ": check failed: " + condition + ": " + message);
}

}  // namespace fastllm
