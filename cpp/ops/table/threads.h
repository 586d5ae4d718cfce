// Where the compute threads of the CPU ops run.
#pragma once

#include <cstdint>

#include "fastllm/status.h"

namespace fastllm::ops {

// Binds the calling thread, and from its next region on the threads that compute with it, to a core each: `count` of
// those that the thread may use, different physical cores before siblings. kInvalidArgument when there are fewer;
// kInternal when the system refuses. Threads that the caller starts by other means inherit its one core.
Status PinThreads(int32_t count);

// Physical cores among the processors that the calling thread may use (its affinity).
int32_t PhysicalCores();

}  // namespace fastllm::ops
