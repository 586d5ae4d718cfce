#include "api/device_facts.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace fastllm::api {
namespace {

// The integer in a one-value file; -1 when it cannot be read or says "max".
int64_t ReadInteger(const char* path) {
  std::ifstream in(path);
  int64_t value = -1;
  return in >> value ? value : -1;
}

// cgroup v2 cpu.max is "quota period" in microseconds, v1 has two files. 0 = no quota.
int32_t CgroupCores() {
  int64_t quota = -1;
  int64_t period = -1;
  if (std::ifstream in("/sys/fs/cgroup/cpu.max"); in) {
    in >> quota >> period;  // "max 100000" fails at the first value and leaves no quota
    if (!in) return 0;
  } else {
    quota = ReadInteger("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    period = ReadInteger("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  }
  if (quota <= 0 || period <= 0) return 0;
  return static_cast<int32_t>((quota + period - 1) / period);
}

int64_t CgroupMemoryLeft() {
  int64_t limit = ReadInteger("/sys/fs/cgroup/memory.max");
  int64_t used = ReadInteger("/sys/fs/cgroup/memory.current");
  if (limit < 0) {
    limit = ReadInteger("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    used = ReadInteger("/sys/fs/cgroup/memory/memory.usage_in_bytes");
  }
  if (limit < 0 || used < 0) return std::numeric_limits<int64_t>::max();
  return std::max<int64_t>(0, limit - used);
}

}  // namespace

int32_t UsableCores() {
  cpu_set_t set;
  int32_t cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  if (int32_t quota = CgroupCores(); quota > 0) cores = std::min(cores, quota);
  return std::max(1, cores);
}

int64_t AvailableMemoryBytes() {
  std::ifstream in("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  int64_t available = 0;
  for (std::string unit; in >> key >> kib; std::getline(in, unit)) {
    if (key == "MemAvailable:") {
      available = kib * 1024;
      break;
    }
  }
  return available == 0 ? 0 : std::min(available, CgroupMemoryLeft());
}

}  // namespace fastllm::api
