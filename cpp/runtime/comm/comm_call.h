// CommCall: what a rank brings to a meeting of its group.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/comm/communicator.h"

namespace fastllm::runtime {

struct CommCall {
  enum class Kind : uint8_t { kAllReduce, kAllGather, kBroadcast, kBarrier };
  Kind kind = Kind::kBarrier;
  CommType type = CommType::kByte;
  int64_t count = 0;
  int32_t root = 0;
  void* data = nullptr;

  bool Fits(const CommCall& other) const {
    return kind == other.kind && type == other.type && count == other.count && root == other.root;
  }
  // "all-reduce of 3 elements of type 0", for messages.
  std::string Text() const {
    static constexpr const char* kNames[] = {"all-reduce", "all-gather", "broadcast", "barrier"};
    return std::string(kNames[static_cast<size_t>(kind)]) + " of " + std::to_string(count) + " elements of type " +
           std::to_string(static_cast<int>(type));
  }
};

// kInternal when values of a type cannot be summed; names the rank that asks.
inline Status CheckSum(CommType type, const std::string& name) {
  if (type != CommType::kI32 && type != CommType::kByte) return Status::Ok();
  return Status::Internal(name + " sums elements of type " + std::to_string(static_cast<int>(type)) +
                          "; floating types can be summed");
}

}  // namespace fastllm::runtime
