// What libfastllm_c10d.so offers: the part of the engine that needs all of libtorch, in a library of its own that is
// loaded when ranks of several nodes first talk. An engine on one node then starts without libtorch_cpu.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "fastllm/status.h"
#include "fastllm/version.h"
#include "runtime/comm/c10d_communicator.h"

namespace fastllm::runtime {

// Both sides are of one build: `version` tells when a file of another one was found.
struct C10dModule {
  const char* version;
  Result<std::shared_ptr<Communicator>> (*make_communicator)(const std::string& name, std::vector<std::string> names);
  Result<std::unique_ptr<GroupStore>> (*serve_store)(std::chrono::milliseconds timeout);
};

inline constexpr const char* kC10dModuleFile = "libfastllm_c10d.so";
inline constexpr const char* kC10dModuleEntry = "FastllmC10dModule";  // const C10dModule* ()

}  // namespace fastllm::runtime
