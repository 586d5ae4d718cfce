// Attention of one work item: a tile of query rows (tokens x the heads of one KV group) against the paged cache, online
// softmax over chunks of positions (Milakov & Gimelshein 2018; Dao 2023).
//
// Bits: for one query row the arithmetic is fixed by its position alone. Chunks start at multiples of kAttentionChunk;
// a dot product is kLanes interleaved sums joined by SumEach's tree; sums over positions go one position after the
// other; a position past the row's own is never added, not even with weight 0. How rows are tiled changes only which
// registers are used, so a prompt in chunks of 1 or 512, alone or in a batch, gives the same bits. Splits of positions
// have sums of their own, joined in order. With a window, rows pass over chunks that they see nothing of, positions
// before a row's window have weight 0, and those that no row sees are not read (the first seen one stands in for them).
#pragma once

#include "ops/cpu/isa/vector_attention_blocks.h"
#include "ops/cpu/isa/vector_attention_cache.h"
#include "ops/cpu/isa/vector_attention_softmax.h"

namespace fastllm::ops::cpu {
namespace {

// sums: accumulators, maxima and sums of weights, as kernels.h lays them out.
inline void PointToSums(Tile* t, float* sums) {
  t->acc = sums;
  t->max = sums + static_cast<int64_t>(t->rows) * t->stride;
  t->sum = t->max + t->rows;
}

inline Tile MakeTile(const PagedAttentionParams& p, const AttentionItem& item, float* scratch, float* sums) {
  Tile t;
  t.group = p.num_q_heads / p.cache.num_kv_heads;
  t.rows = item.num_tokens * t.group;
  t.first_row = 0;
  t.dim = p.cache.head_dim;
  t.stride = (t.dim + kAttentionPad - 1) / kAttentionPad * kAttentionPad;
  const int32_t query_len = p.query_start[item.seq + 1] - p.query_start[item.seq];
  t.first_pos = p.seq_len[item.seq] - query_len + item.first_token;
  t.window = p.window;
  t.softcap = p.logit_softcap;
  t.q = scratch;
  t.scores = t.q + static_cast<int64_t>(t.rows) * t.stride;
  t.wide = t.scores + static_cast<int64_t>(t.rows) * kAttentionChunk;
  PointToSums(&t, sums);
  return t;
}

// Row r of the tile in a [token, head, dim] tensor with the given token stride.
inline int64_t RowOffset(const PagedAttentionParams& p, const AttentionItem& item, const Tile& t, int32_t r,
                         int64_t token_stride) {
  const int64_t token = p.query_start[item.seq] + item.first_token + r / t.group;
  return token * token_stride + (static_cast<int64_t>(item.kv_head) * t.group + r % t.group) * t.dim;
}

inline void LoadQueries(const PagedAttentionParams& p, const AttentionItem& item, const Tile& t) {
  const Vec scale = Set(p.scale);
  for (int32_t r = 0; r < t.rows; ++r) {
    const float* src = static_cast<const float*>(p.q) + RowOffset(p, item, t, r, p.q_stride);
    float* q = t.q + static_cast<int64_t>(r) * t.stride;
    for (int32_t d = 0; d < t.stride; d += kLanes) {
      const int32_t left = t.dim - d;
      const Vec x = left >= kLanes ? Load(src + d) : (left > 0 ? LoadFirst(src + d, left) : Set(0.0f));
      Store(q + d, Mul(x, scale));
    }
  }
}

inline void StoreOutput(const PagedAttentionParams& p, const AttentionItem& item, const Tile& t) {
  const int64_t token_stride = static_cast<int64_t>(p.num_q_heads) * t.dim;
  for (int32_t r = 0; r < t.rows; ++r) {
    float* out = static_cast<float*>(p.out) + RowOffset(p, item, t, r, token_stride);
    const float* acc = t.acc + static_cast<int64_t>(r) * t.stride;
    const Vec inverse = Set(1.0f / t.sum[r]);
    int32_t d = 0;
    for (; d + kLanes <= t.dim; d += kLanes) Store(out + d, Mul(Load(acc + d), inverse));
    if (d < t.dim) StoreFirst(out + d, Mul(Load(acc + d), inverse), t.dim - d);
  }
}

// The sums of the rows over one split of the positions, all of it up to the last row's own.
template <typename Cache>
inline void SumSplit(const PagedAttentionParams& p, const AttentionItem& item, const Tile& t, int32_t split,
                     const Ahead& ahead) {
  Fetcher fetcher;
  Cache cache(p, t);
  const int32_t begin = split * kAttentionSplit;
  const int32_t seen = t.first_pos + item.num_tokens;
  const int32_t end = seen < begin + kAttentionSplit ? seen : begin + kAttentionSplit;
  for (int32_t r = FirstRow(t, begin); r < t.rows; ++r) {
    float* acc = t.acc + static_cast<int64_t>(r) * t.stride;
    for (int32_t d = 0; d < t.stride; d += kLanes) Store(acc + d, Set(0.0f));
    t.max[r] = -__builtin_inff();
    t.sum[r] = 0.0f;
  }
  int64_t offset[kAttentionChunk];
  const int32_t seen_from = FirstSeen(t.window, t.first_pos);
  Tile seers = t;  // the rows up to the last that sees something of the chunk
  for (int32_t chunk = begin; chunk < end; chunk += kAttentionChunk) {
    if (chunk + kAttentionChunk <= seen_from) continue;
    const int32_t n = end - chunk < kAttentionChunk ? end - chunk : kAttentionChunk;
    seers.rows = EndRow(t, chunk + kAttentionChunk);
    ChunkOffsets(p, item, chunk, seen_from > chunk ? seen_from - chunk : 0, n, offset);
    FetchAhead(p, item, ahead, chunk, n, &fetcher);
    cache.Chunk(p, t, offset, n, fetcher);
    fetcher.Step(kAttentionChunk * kAttentionChunk);  // what is left
    for (int32_t r = FirstRow(t, chunk); r < seers.rows; r += BlockRows(t)) {
      const Tile few = RowsOf(seers, r);
      const int32_t visible = Visible(few, few.rows - 1, chunk);
      cache.Scores(few, offset, visible < n ? visible : n);
      if constexpr (Cache::kOwnSoftmax) {
        cache.Softmax(few, chunk);
      } else {
        Softmax(few, chunk);
      }
      cache.Values(few, offset, chunk);
    }
  }
}

// total += part, for the rows that see the split of part.
inline void Join(const Tile& total, const Tile& part, int32_t split) {
  const int32_t end_row = EndRow(total, (split + 1) * kAttentionSplit);
  for (int32_t r = FirstRow(total, split * kAttentionSplit); r < end_row; ++r) {
    const float max = total.max[r] > part.max[r] ? total.max[r] : part.max[r];
    const Vec a = Exp(Set(total.max[r] - max));
    const Vec b = Exp(Set(part.max[r] - max));
    float lanes[2][kLanes];
    Store(lanes[0], a);
    Store(lanes[1], b);
    total.max[r] = max;
    total.sum[r] = __builtin_fmaf(part.sum[r], lanes[1][0], total.sum[r] * lanes[0][0]);
    float* to = total.acc + static_cast<int64_t>(r) * total.stride;
    const float* from = part.acc + static_cast<int64_t>(r) * total.stride;
    for (int32_t d = 0; d < total.stride; d += kLanes) Store(to + d, Fma(Load(from + d), b, Mul(Load(to + d), a)));
  }
}

// One past the last split of the item.
inline int32_t EndSplit(const AttentionItem& item, const Tile& t) {
  return (t.first_pos + item.num_tokens + kAttentionSplit - 1) / kAttentionSplit;
}

template <typename Cache>
inline void AttendAll(const PagedAttentionParams& p, const AttentionItem& item, const AttentionItem* next,
                      float* scratch) {
  const Ahead ahead = {EndPosition(p, item), next};
  Tile total = MakeTile(p, item, scratch, scratch);
  PointToSums(&total, total.wide + WideFloats(total.rows, total.stride));
  Tile part = total;
  PointToSums(&part, total.sum + total.rows);
  LoadQueries(p, item, total);
  const int32_t first = FirstSplit(p, item);
  SumSplit<Cache>(p, item, total, first, ahead);
  for (int32_t split = first + 1; split < EndSplit(item, total); ++split) {
    SumSplit<Cache>(p, item, part, split, ahead);
    Join(total, part, split);
  }
  StoreOutput(p, item, total);
}

template <typename Cache>
inline void AttendSplit(const PagedAttentionParams& p, const AttentionItem& item, int32_t split, float* scratch,
                        float* sums) {
  const Tile t = MakeTile(p, item, scratch, sums);
  LoadQueries(p, item, t);
  const int32_t end = (split + 1) * kAttentionSplit;
  const int32_t last = EndPosition(p, item);
  SumSplit<Cache>(p, item, t, split, {end < last ? end : last, nullptr});
}

void Attention(const PagedAttentionParams& p, const AttentionItem& item, const AttentionItem* next, float* scratch) {
  switch (p.cache.dtype) {
    case DType::kF32: return AttendAll<FloatCache>(p, item, next, scratch);
    case DType::kF16: return AttendAll<NarrowCache<LoadF16>>(p, item, next, scratch);
    case DType::kBF16: return AttendAll<BFloatCache>(p, item, next, scratch);
    case DType::kI8: return AttendAll<ByteCache>(p, item, next, scratch);
    default: return;  // kF8E4M3 never comes here: AttentionOp
  }
}

void AttentionSplit(const PagedAttentionParams& p, const AttentionItem& item, int32_t split, float* scratch,
                    float* sums) {
  switch (p.cache.dtype) {
    case DType::kF32: return AttendSplit<FloatCache>(p, item, split, scratch, sums);
    case DType::kF16: return AttendSplit<NarrowCache<LoadF16>>(p, item, split, scratch, sums);
    case DType::kBF16: return AttendSplit<BFloatCache>(p, item, split, scratch, sums);
    case DType::kI8: return AttendSplit<ByteCache>(p, item, split, scratch, sums);
    default: return;
  }
}

void AttentionJoin(const PagedAttentionParams& p, const AttentionItem& item, float* sums, int64_t sums_stride) {
  const Tile total = MakeTile(p, item, sums, sums);  // needs no scratch
  Tile part = total;
  const int32_t first = FirstSplit(p, item);
  for (int32_t split = first + 1; split < EndSplit(item, total); ++split) {
    PointToSums(&part, sums + (split - first) * sums_stride);
    Join(total, part, split);
  }
  StoreOutput(p, item, total);
}

}  // namespace
}  // namespace fastllm::ops::cpu
