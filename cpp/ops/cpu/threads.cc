#include "ops/table/threads.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/cpu/team.h"

namespace fastllm::ops {
namespace {

// (package, core) of a processor; a system that does not say has no siblings.
std::pair<int64_t, int64_t> CoreOf(int32_t cpu) {
  const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
  int64_t package = 0;
  int64_t core = 0;
  const bool known = static_cast<bool>(std::ifstream(folder + "physical_package_id") >> package) &&
                     static_cast<bool>(std::ifstream(folder + "core_id") >> core);
  return known ? std::pair{package, core} : std::pair{int64_t{-1}, int64_t{cpu}};
}

// The allowed processors: one of each core first, then their siblings.
struct Processors {
  std::vector<int32_t> order;
  int32_t cores = 0;
};

Processors Allowed() {
  Processors out;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return out;
  std::set<std::pair<int64_t, int64_t>> seen;
  std::vector<int32_t> siblings;
  for (int32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    (seen.insert(CoreOf(cpu)).second ? out.order : siblings).push_back(cpu);
  }
  out.cores = static_cast<int32_t>(out.order.size());
  out.order.insert(out.order.end(), siblings.begin(), siblings.end());
  return out;
}

}  // namespace

int32_t PhysicalCores() { return std::max(1, Allowed().cores); }

Status PinThreads(int32_t count) {
  Processors allowed = Allowed();
  if (count < 1 || static_cast<size_t>(count) > allowed.order.size()) {
    return Status::InvalidArgument("cannot bind " + std::to_string(count) +
                                   " threads to a core each; the process may use " +
                                   std::to_string(allowed.order.size()));
  }
  allowed.order.resize(static_cast<size_t>(count));
  if (const int error = cpu::Team::OfThisThread().Pin(std::move(allowed.order)); error != 0) {
    return Status::Internal(std::string("the system does not bind threads to cores: ") + std::strerror(error));
  }
  return Status::Ok();
}

}  // namespace fastllm::ops
