// Ops whose tokens are independent and cost the same.
#include <cstring>
#include <string>

#include "core/base/check.h"
#include "ops/cpu/drive.h"
#include "ops/cpu/fp8.h"
#include "ops/cpu/int8_cache.h"
#include "ops/cpu/parallel.h"

namespace fastllm::ops::cpu {
namespace {

// Rough nanoseconds of one core for n elements read and written from the cache; only their order of size matters.
int64_t CopyWork(int64_t elements) { return elements / 4; }
int64_t MathWork(int64_t elements) { return elements / 3; }

}  // namespace

void Embedding(const EmbeddingParams& p, const OpContext& ctx) {
  const auto* table = static_cast<const float*>(p.table);
  auto* out = static_cast<float*>(p.out);
  const int64_t hidden = p.hidden;
  const int32_t num_ids = p.num_ids == 0 ? p.vocab : p.num_ids;
  for (int32_t t = 0; t < p.num_tokens; ++t) {
    FASTLLM_CHECK(p.ids[t] >= 0 && p.ids[t] < num_ids, "embedding: id " + std::to_string(p.ids[t]) + " of token " +
                                                           std::to_string(t) + " is outside the vocabulary of " +
                                                           std::to_string(num_ids));
  }
  ParallelRanges(p.num_tokens, CopyWork(p.num_tokens * hidden), ctx.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = p.ids[t] - p.first_id;
      if (row >= 0 && row < p.vocab) {
        std::memcpy(out + t * hidden, table + row * hidden, hidden * sizeof(float));
      } else {
        std::memset(out + t * hidden, 0, hidden * sizeof(float));
      }
    }
  });
}

void GatherRows(const GatherRowsParams& p, const OpContext& ctx) {
  const auto* in = static_cast<const float*>(p.in);
  auto* out = static_cast<float*>(p.out);
  const int64_t hidden = p.hidden;
  ParallelRanges(p.num_rows, CopyWork(p.num_rows * hidden), ctx.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(out + i * hidden, in + (p.rows == nullptr ? 0 : p.rows[i]) * hidden, hidden * sizeof(float));
    }
  });
}

void WriteHeads(const Kernels& k, const KvCacheView& c, const float* from, void* to, int64_t slot) {
  if (c.dtype == DType::kI8) {
    return WriteInt8Heads(c, from, static_cast<int8_t*>(to), to == c.k ? c.k_row_scales : c.v_row_scales, slot);
  }
  const float inverse = 1.0f / (to == c.k ? c.k_scale : c.v_scale);
  const int64_t block = slot / c.block_size;
  const int64_t row = slot % c.block_size;
  for (int64_t h = 0; h < c.num_kv_heads; ++h) {
    const int64_t at = block * KvBlockStride(c) + (h * c.block_size + row) * c.head_dim;
    if (c.dtype == DType::kF8E4M3) {
      auto* codes = static_cast<uint8_t*>(to) + at;
      for (int32_t d = 0; d < c.head_dim; ++d) codes[d] = FloatToFp8(from[h * c.head_dim + d] * inverse);
      continue;
    }
    k.narrow(from + h * c.head_dim, c.head_dim, c.dtype, static_cast<char*>(to) + at * DTypeSize(c.dtype));
  }
}

void RunKvWrite(const Kernels& k, const KvWriteParams& p, const OpContext& ctx) {
  const KvCacheView& c = p.cache;
  const int64_t slots = static_cast<int64_t>(c.num_blocks) * c.block_size;
  for (int32_t t = 0; t < p.num_tokens; ++t) {
    FASTLLM_CHECK(p.slot_mapping[t] < slots, "kv_write: slot " + std::to_string(p.slot_mapping[t]) + " of token " +
                                                 std::to_string(t) + " is past the cache of " + std::to_string(slots) +
                                                 " slots");
  }
  const int64_t work = CopyWork(int64_t{2} * p.num_tokens * c.num_kv_heads * c.head_dim);
  ParallelRanges(p.num_tokens, work, ctx.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (p.slot_mapping[t] < 0) continue;
      WriteHeads(k, c, static_cast<const float*>(p.k) + t * p.k_stride, c.k, p.slot_mapping[t]);
      WriteHeads(k, c, static_cast<const float*>(p.v) + t * p.v_stride, c.v, p.slot_mapping[t]);
    }
  });
}

void RunRmsNorm(const Kernels& k, const RmsNormParams& p, const OpContext& ctx) {
  ParallelRanges(p.num_tokens, MathWork(int64_t{p.num_tokens} * p.hidden), ctx.num_threads,
                 [&](int64_t begin, int64_t end) { k.rms_norm(p, begin, end); });
}

void RunRope(const Kernels& k, const RopeParams& p, const OpContext& ctx) {
  const int64_t elements = int64_t{p.num_tokens} * (p.num_q_heads + p.num_kv_heads) * p.rotary_dim;
  ParallelRanges(p.num_tokens, MathWork(elements), ctx.num_threads,
                 [&](int64_t begin, int64_t end) { k.rope(p, begin, end); });
}

void RunSiluMul(const Kernels& k, const SiluMulParams& p, const OpContext& ctx) {
  ParallelRanges(p.num_tokens, MathWork(int64_t{p.num_tokens} * p.n), ctx.num_threads,
                 [&](int64_t begin, int64_t end) { k.silu_mul(p, begin, end); });
}

}  // namespace fastllm::ops::cpu
