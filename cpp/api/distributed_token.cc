#include "api/distributed_token.h"

#include <cstdlib>

namespace fastllm::api {

std::string DistributedToken(const ParallelOptions& options) {
  if (!options.distributed_token.empty()) return options.distributed_token;
  const char* said = std::getenv("FASTLLM_DISTRIBUTED_TOKEN");
  return said == nullptr ? "" : said;
}

}  // namespace fastllm::api
