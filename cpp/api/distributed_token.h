// The secret that the nodes of an engine share.
#pragma once

#include <string>

#include "fastllm/config.h"

namespace fastllm::api {

// The option distributed_token; without it the environment's FASTLLM_DISTRIBUTED_TOKEN; empty when there is neither.
std::string DistributedToken(const ParallelOptions& options);

}  // namespace fastllm::api
