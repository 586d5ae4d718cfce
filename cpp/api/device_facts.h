// What this machine offers to one process: cores and memory, within its affinity mask and cgroup.
#pragma once

#include <cstdint>

namespace fastllm::api {

// Physical cores in the affinity mask, capped by the least CPU quota (rounded up) of the cgroups that the process is
// in; at least 1.
int32_t UsableCores();

// Bytes that may still be taken: MemAvailable, capped by what the cgroup's limit leaves. 0 when unknown.
int64_t AvailableMemoryBytes();

}  // namespace fastllm::api
