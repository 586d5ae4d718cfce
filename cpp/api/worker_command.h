// The program that runs a rank in a process of its own.
#pragma once

#include <string>
#include <vector>

#include "fastllm/config.h"

namespace fastllm::api {

// The user's, or fastllm_worker: beside the library that this code is in, in ../bin of that, or else in PATH.
std::vector<std::string> WorkerCommand(const ParallelOptions& options);

}  // namespace fastllm::api
