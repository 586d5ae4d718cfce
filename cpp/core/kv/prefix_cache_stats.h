// What the prefix cache was asked for and what it had. Plain data.
#pragma once

#include <cstdint>

namespace fastllm {

// Counted at admission, so that retries count once. A sequence that does not read the cache is not counted; the first
// three are of first admissions, the others of admissions after a preemption.
struct PrefixCacheStats {
  int64_t requests = 0;
  int64_t query_tokens = 0;
  int64_t hit_tokens = 0;
  int64_t preempted_requests = 0;
  int64_t preempted_query_tokens = 0;
  int64_t preempted_hit_tokens = 0;
};

}  // namespace fastllm
