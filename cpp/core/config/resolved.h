// What the rooms of the core are built from: small structs made once by Resolve() (resolve.h) from the user's
// EngineConfig, the model's facts and the device's facts. Immutable afterwards.
#pragma once

#include <cstdint>
#include <vector>

namespace fastllm {

// The layers that share one kind of KV need. A pool block holds block_size tokens of every layer of the group.
enum class KvGroupKind : uint8_t { kFull = 0, kSlidingWindow = 1 };

struct KvGroupSpec {
  KvGroupKind kind = KvGroupKind::kFull;
  int32_t window = 0;  // tokens, kSlidingWindow only
};

struct KvConfig {
  int32_t num_blocks = 0;  // the null block included
  int32_t block_size = 16;
  bool enable_prefix_caching = true;
  std::vector<KvGroupSpec> groups = {KvGroupSpec{}};
};

struct SchedConfig {
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 4096;
  int32_t max_model_len = 0;
  int32_t long_prefill_token_threshold = 0;
  bool enable_chunked_prefill = true;
};

}  // namespace fastllm
