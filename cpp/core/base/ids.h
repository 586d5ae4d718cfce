// Plain integer names used across rooms.
#pragma once

#include <cstdint>

namespace fastllm {

using TokenId = int32_t;
using BlockId = int32_t;
using RequestId = uint64_t;  // the engine's handle of a request; 0 is never one

inline constexpr BlockId kNullBlock = 0;

}  // namespace fastllm
