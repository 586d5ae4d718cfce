#include "api/device_facts.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "ops/table/threads.h"

namespace fastllm::api {
namespace {

// The integer in a one-value file; -1 when it cannot be read or says "max".
int64_t ReadInteger(const char* path) {
  std::ifstream in(path);
  int64_t value = -1;
  return in >> value ? value : -1;
}

int32_t CoresOfQuota(int64_t quota, int64_t period) {
  if (quota <= 0 || period <= 0) return std::numeric_limits<int32_t>::max();
  return static_cast<int32_t>(std::min<int64_t>((quota + period - 1) / period, std::numeric_limits<int32_t>::max()));
}

// cpu.max of a group of cgroup v2 is "quota period" in microseconds.
int32_t CoresOfGroup(const std::string& folder) {
  int64_t quota = -1;
  int64_t period = -1;
  std::ifstream in(folder + "/cpu.max");
  if (!(in >> quota >> period)) return CoresOfQuota(-1, -1);  // "max 100000" fails at the first value: no quota
  return CoresOfQuota(quota, period);
}

// The least quota of the process's group and the groups above it; of cgroup v1 that of the root that it sees.
int32_t CgroupCores() {
  const std::string root = "/sys/fs/cgroup";
  int32_t cores = CoresOfGroup(root);
  std::ifstream own("/proc/self/cgroup");
  for (std::string line; std::getline(own, line);) {
    if (line.rfind("0::/", 0) != 0) continue;  // v2
    for (std::string path = line.substr(3); path.size() > 1; path.resize(path.rfind('/'))) {
      cores = std::min(cores, CoresOfGroup(root + path));
    }
  }
  const int64_t quota = ReadInteger("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  return std::min(cores, CoresOfQuota(quota, ReadInteger("/sys/fs/cgroup/cpu/cpu.cfs_period_us")));
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

int32_t UsableCores() { return std::max(1, std::min(ops::PhysicalCores(), CgroupCores())); }

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
