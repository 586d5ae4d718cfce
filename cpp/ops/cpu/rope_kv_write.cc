// Norm, rotation and cache write of one token at a time, from the row kernels of the arm.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "ops/cpu/drive.h"
#include "ops/cpu/parallel.h"

namespace fastllm::ops::cpu {
namespace {

void NormHeads(const Kernels& k, float* x, const void* weight, int32_t heads, int32_t head_dim, float eps) {
  if (weight != nullptr) k.rms_norm({x, x, nullptr, weight, heads, head_dim, eps}, 0, heads);
}

// Tokens that a thread takes at a time where there are many: rows that follow one another come ahead of their use.
constexpr int64_t kRun = 8;

// key: num_kv_heads * head_dim floats of scratch.
void DoToken(const Kernels& kernels, const RopeKvWriteParams& p, int64_t t, float* key) {
  const KvCacheView& c = p.cache;
  float* q = static_cast<float*>(p.q) + t * p.q_stride;
  std::memcpy(key, static_cast<const float*>(p.k) + t * p.k_stride, sizeof(float) * c.num_kv_heads * c.head_dim);
  NormHeads(kernels, q, p.q_norm_weight, p.num_q_heads, c.head_dim, p.eps);
  NormHeads(kernels, key, p.k_norm_weight, c.num_kv_heads, c.head_dim, p.eps);
  kernels.rope({q, key, p.cos_sin, p.positions + t, 0, 0, 1, p.num_q_heads, c.num_kv_heads, c.head_dim, p.rotary_dim,
                p.interleaved},
               0, 1);
  if (p.slot_mapping[t] < 0) return;
  WriteHeads(kernels, c, key, c.k, p.slot_mapping[t]);
  WriteHeads(kernels, c, static_cast<const float*>(p.v) + t * p.v_stride, c.v, p.slot_mapping[t]);
}

}  // namespace

void RunRopeKvWrite(const Kernels& k, const RopeKvWriteParams& p, const OpContext& ctx) {
  thread_local std::vector<float> scratch;
  const KvCacheView& c = p.cache;
  const int64_t slots = static_cast<int64_t>(c.num_blocks) * c.block_size;
  for (int32_t t = 0; t < p.num_tokens; ++t) {
    FASTLLM_CHECK(p.slot_mapping[t] < slots, "rope_kv_write: slot " + std::to_string(p.slot_mapping[t]) + " of token " +
                                                 std::to_string(t) + " is past the cache of " + std::to_string(slots) +
                                                 " slots");
  }
  const int64_t row = static_cast<int64_t>(c.num_kv_heads) * c.head_dim;
  const int64_t work = int64_t{p.num_tokens} * (p.num_q_heads + 2 * c.num_kv_heads) * c.head_dim / 3;
  const int64_t run = p.num_tokens >= 2 * kRun * ctx.num_threads ? kRun : 1;
  const int64_t runs = (p.num_tokens + run - 1) / run;
  const int32_t team = TeamSize(runs, work, ctx.num_threads);
  scratch.resize(static_cast<size_t>(std::max<int64_t>(1, team * row)));
  float* const keys = scratch.data();
  ParallelItems(runs, work, team, [&](int64_t i, int32_t thread) {
    const int64_t end = std::min<int64_t>(p.num_tokens, (i + 1) * run);
    for (int64_t t = i * run; t < end; ++t) DoToken(k, p, t, keys + thread * row);
  });
}

}  // namespace fastllm::ops::cpu
