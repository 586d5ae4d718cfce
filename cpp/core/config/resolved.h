// What the rooms of the core are built from: small structs made once by Resolve() (resolve.h) from the user's
// EngineConfig, the model's facts and the device's facts. Immutable afterwards.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace fastllm {

// The layers that share one kind of KV need. A pool block holds block_size tokens of every layer of the group; for
// kState it holds the state of every layer after some token (core/kv/kv_need.h).
enum class KvGroupKind : uint8_t { kFull = 0, kSlidingWindow = 1, kState = 2 };

struct KvGroupSpec {
  KvGroupKind kind = KvGroupKind::kFull;
  int32_t window = 0;      // kSlidingWindow only: tokens that one token attends to, itself included
  int32_t block_size = 0;  // tokens, a multiple of KvConfig.block_size; 0: KvConfig.block_size
};

enum class PrefixHashAlgo : uint8_t { kXxHash = 0, kSha256 = 1 };

struct KvConfig {
  int32_t num_blocks = 0;   // the null block included
  int32_t block_size = 16;  // tokens; the unit in which prefixes are hashed and cached
  bool enable_prefix_caching = true;
  std::vector<KvGroupSpec> groups = {KvGroupSpec{}};
  PrefixHashAlgo prefix_hash_algo = PrefixHashAlgo::kXxHash;
  std::optional<uint64_t> prefix_hash_seed;  // of kXxHash; without it each KvManager draws one
  int32_t max_step_tokens = 0;               // most tokens of a sequence in flight and in the next step; 0: unknown
  int32_t kv_event_capacity = 0;             // events that wait for their reader; 0: no events
};

enum class SchedulingPolicy : uint8_t { kFcfs = 0, kPriority = 1 };

struct SchedConfig {
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 4096;
  int32_t max_model_len = 0;
  int32_t long_prefill_token_threshold = 0;
  bool enable_chunked_prefill = true;
  bool async_scheduling = true;
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  bool long_prefill_fair_share = true;
  int32_t max_num_mixed_prefill_tokens = 0;  // 0: max_num_batched_tokens
  float watermark = 0;                       // share of the blocks, in [0, 1)
  int32_t max_num_queued_reqs = 0;           // 0: no limit, as below
  int64_t max_num_queued_tokens = 0;         // prompt tokens, and output of preempted ones
  int64_t request_timeout_ms = 0;            // since the arrival; of requests without their own
  int64_t max_queue_ms = 0;
  // With more than one, as many plans may be in flight (one more with async_scheduling), of different sequences.
  int32_t pipeline_stages = 1;
};

}  // namespace fastllm
