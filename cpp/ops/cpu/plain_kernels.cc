// The plain arm: scalar, in the order of the formulas, for reading and as the oracle of the vector arms.
#include <bit>
#include <cmath>
#include <limits>

#include "ops/cpu/fp8.h"
#include "ops/cpu/half.h"
#include "ops/cpu/kernels.h"

namespace fastllm::ops::cpu {
namespace {

void RmsNorm(const RmsNormParams& p, int64_t begin, int64_t end) {
  const auto* weight = static_cast<const float*>(p.weight);
  for (int64_t t = begin; t < end; ++t) {
    const auto* x = static_cast<const float*>(p.x) + t * p.hidden;
    auto* out = static_cast<float*>(p.out) + t * p.hidden;
    if (p.residual != nullptr) {
      auto* residual = static_cast<float*>(p.residual) + t * p.hidden;
      for (int32_t i = 0; i < p.hidden; ++i) residual[i] += x[i];
      x = residual;
    }
    float sum = 0.0f;
    for (int32_t i = 0; i < p.hidden; ++i) sum += x[i] * x[i];
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(p.hidden) + p.eps);
    for (int32_t i = 0; i < p.hidden; ++i) out[i] = x[i] * scale * weight[i];
  }
}

void RotateHead(float* x, const float* cos, const float* sin, int32_t half, bool interleaved) {
  for (int32_t i = 0; i < half; ++i) {
    float& a = interleaved ? x[2 * i] : x[i];
    float& b = interleaved ? x[2 * i + 1] : x[i + half];
    const float a0 = a;
    const float b0 = b;
    a = a0 * cos[i] - b0 * sin[i];
    b = b0 * cos[i] + a0 * sin[i];
  }
}

void Rope(const RopeParams& p, int64_t begin, int64_t end) {
  const int32_t half = p.rotary_dim / 2;
  for (int64_t t = begin; t < end; ++t) {
    const float* cos = p.cos_sin + static_cast<int64_t>(p.positions[t]) * p.rotary_dim;
    const float* sin = cos + half;
    float* q = static_cast<float*>(p.q) + t * p.q_stride;
    float* k = static_cast<float*>(p.k) + t * p.k_stride;
    for (int32_t h = 0; h < p.num_q_heads; ++h) RotateHead(q + h * p.head_dim, cos, sin, half, p.interleaved);
    for (int32_t h = 0; h < p.num_kv_heads; ++h) RotateHead(k + h * p.head_dim, cos, sin, half, p.interleaved);
  }
}

void Linear(const LinearParams& p, int32_t row_begin, int32_t row_end, int32_t n_begin, int32_t n_end) {
  const auto* x = static_cast<const float*>(p.x);
  const auto* weight = static_cast<const float*>(p.weight);
  const auto* bias = static_cast<const float*>(p.bias);
  auto* out = static_cast<float*>(p.out);
  for (int64_t t = row_begin; t < row_end; ++t) {
    for (int64_t n = n_begin; n < n_end; ++n) {
      float sum = 0.0f;
      for (int64_t i = 0; i < p.k; ++i) sum += x[t * p.k + i] * weight[n * p.k + i];
      out[t * p.n + n] = bias == nullptr ? sum : sum + bias[n];
    }
  }
}

void SiluMul(const SiluMulParams& p, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const float* gate = static_cast<const float*>(p.gate_up) + t * 2 * p.n;
    const float* up = gate + p.n;
    float* out = static_cast<float*>(p.out) + t * p.n;
    for (int32_t i = 0; i < p.n; ++i) out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
  }
}

void Narrow(const float* x, int64_t n, DType to, void* out) {
  for (int64_t i = 0; i < n; ++i) {
    switch (to) {
      case DType::kF32: static_cast<float*>(out)[i] = x[i]; break;
      case DType::kF16: static_cast<uint16_t*>(out)[i] = FloatToHalf(x[i]); break;
      case DType::kBF16: static_cast<uint16_t*>(out)[i] = FloatToBFloat(x[i]); break;
      case DType::kI8: break;  // never comes here: WriteHeads
      case DType::kF8E4M3: static_cast<uint8_t*>(out)[i] = FloatToFp8(x[i]); break;
    }
  }
}

// scale: of a cache of 8 bits.
float CacheValue(const void* base, DType type, float scale, int64_t index) {
  if (type == DType::kF32) return static_cast<const float*>(base)[index];
  if (type == DType::kI8) return static_cast<float>(static_cast<const int8_t*>(base)[index]) * scale;
  if (type == DType::kF8E4M3) return Fp8ToFloat(static_cast<const uint8_t*>(base)[index]) * scale;
  const uint16_t bits = static_cast<const uint16_t*>(base)[index];
  return type == DType::kF16 ? HalfToFloat(bits) : std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Offset of position `pos` of sequence `seq` in the cache, for the item's KV head.
int64_t CacheOffset(const PagedAttentionParams& p, const AttentionItem& item, int32_t pos) {
  const KvCacheView& c = p.cache;
  const int64_t block = p.block_table[static_cast<int64_t>(item.seq) * p.max_blocks + pos / c.block_size];
  return block * KvBlockStride(c) + (int64_t{item.kv_head} * c.block_size + pos % c.block_size) * c.head_dim;
}

// Of the row at an offset: its own, or that of the cache.
float RowScale(const KvCacheView& c, const float* rows, float all, int64_t offset) {
  return c.dtype == DType::kI8 ? rows[offset / c.head_dim] : all;
}

// Softmax sums of one query row over some positions: acc = sum of exp(score - max) v.
struct RowSums {
  float* acc;
  float* max;
  float* sum;
};

RowSums SumsOfRow(const PagedAttentionParams& p, const AttentionItem& item, float* sums, int32_t row) {
  const int32_t rows = item.num_tokens * (p.num_q_heads / p.cache.num_kv_heads);
  const int64_t stride = (p.cache.head_dim + kAttentionPad - 1) / kAttentionPad * kAttentionPad;
  float* max = sums + rows * stride + row;
  return {sums + row * stride, max, max + rows};
}

// Row `row` of the item: the positions that it sees, and where it lies in q and out.
struct RowPlace {
  int32_t first;
  int32_t last;
  const float* q;
  float* out;
};

RowPlace PlaceOf(const PagedAttentionParams& p, const AttentionItem& item, int32_t row) {
  const int32_t group = p.num_q_heads / p.cache.num_kv_heads;
  const int32_t query_len = p.query_start[item.seq + 1] - p.query_start[item.seq];
  const int32_t at = item.first_token + row / group;
  const int64_t token = p.query_start[item.seq] + at;
  const int64_t head = static_cast<int64_t>(item.kv_head) * group + row % group;
  const int32_t position = p.seq_len[item.seq] - query_len + at;
  return {FirstSeen(p.window, position), position,
          static_cast<const float*>(p.q) + token * p.q_stride + head * p.cache.head_dim,
          static_cast<float*>(p.out) + (token * p.num_q_heads + head) * p.cache.head_dim};
}

float Score(const PagedAttentionParams& p, float dot) {
  const float x = dot * p.scale;
  return p.logit_softcap > 0.0f ? p.logit_softcap * std::tanh(x / p.logit_softcap) : x;
}

// One query row against positions [begin, end), in chunks with a running maximum.
void AttendRow(const PagedAttentionParams& p, const AttentionItem& item, const float* q, int32_t begin, int32_t end,
               float* scores, const RowSums& s) {
  const int32_t dim = p.cache.head_dim;
  *s.max = -std::numeric_limits<float>::infinity();
  *s.sum = 0.0f;
  for (int32_t d = 0; d < dim; ++d) s.acc[d] = 0.0f;
  int32_t n = 0;
  for (int32_t first = begin; first < end; first += n) {
    const int32_t room = kAttentionChunk - first % kAttentionChunk;
    n = end - first < room ? end - first : room;
    float new_max = *s.max;
    for (int32_t j = 0; j < n; ++j) {
      const int64_t at = CacheOffset(p, item, first + j);
      const float scale = RowScale(p.cache, p.cache.k_row_scales, p.cache.k_scale, at);
      float dot = 0.0f;
      for (int32_t d = 0; d < dim; ++d) dot += q[d] * CacheValue(p.cache.k, p.cache.dtype, scale, at + d);
      scores[j] = Score(p, dot);
      new_max = std::fmax(new_max, scores[j]);
    }
    const float correction = std::exp(*s.max - new_max);
    *s.sum *= correction;
    for (int32_t d = 0; d < dim; ++d) s.acc[d] *= correction;
    for (int32_t j = 0; j < n; ++j) {
      const float weight = std::exp(scores[j] - new_max);
      const int64_t at = CacheOffset(p, item, first + j);
      const float scale = RowScale(p.cache, p.cache.v_row_scales, p.cache.v_scale, at);
      *s.sum += weight;
      for (int32_t d = 0; d < dim; ++d) s.acc[d] += weight * CacheValue(p.cache.v, p.cache.dtype, scale, at + d);
    }
    *s.max = new_max;
  }
}

// total += part
void Join(const RowSums& total, const RowSums& part, int32_t dim) {
  const float max = std::fmax(*total.max, *part.max);
  const float a = std::exp(*total.max - max);
  const float b = std::exp(*part.max - max);
  *total.max = max;
  *total.sum = *total.sum * a + *part.sum * b;
  for (int32_t d = 0; d < dim; ++d) total.acc[d] = total.acc[d] * a + part.acc[d] * b;
}

int32_t RowsOf(const PagedAttentionParams& p, const AttentionItem& item) {
  return item.num_tokens * (p.num_q_heads / p.cache.num_kv_heads);
}

// What a row sees of a split.
void AttendSplit(const PagedAttentionParams& p, const AttentionItem& item, const RowPlace& place, int32_t split,
                 float* scores, const RowSums& sums) {
  const int32_t begin = split * kAttentionSplit;
  const int32_t end = place.last + 1 < begin + kAttentionSplit ? place.last + 1 : begin + kAttentionSplit;
  AttendRow(p, item, place.q, place.first > begin ? place.first : begin, end, scores, sums);
}

void AttentionSplit(const PagedAttentionParams& p, const AttentionItem& item, int32_t split, float* scratch,
                    float* sums) {
  for (int32_t r = 0; r < RowsOf(p, item); ++r) {
    AttendSplit(p, item, PlaceOf(p, item, r), split, scratch, SumsOfRow(p, item, sums, r));
  }
}

void AttentionJoin(const PagedAttentionParams& p, const AttentionItem& item, float* sums, int64_t sums_stride) {
  for (int32_t r = 0; r < RowsOf(p, item); ++r) {
    const RowPlace place = PlaceOf(p, item, r);
    const int32_t first = place.first / kAttentionSplit;
    const auto sums_of = [&](int32_t split) {
      return SumsOfRow(p, item, sums + (split - FirstSplit(p, item)) * sums_stride, r);
    };
    const RowSums total = sums_of(first);
    for (int32_t split = first + 1; split * kAttentionSplit <= place.last; ++split) {
      Join(total, sums_of(split), p.cache.head_dim);
    }
    for (int32_t d = 0; d < p.cache.head_dim; ++d) place.out[d] = total.acc[d] / *total.sum;
  }
}

void Attention(const PagedAttentionParams& p, const AttentionItem& item, const AttentionItem*, float* scratch) {
  const int32_t dim = p.cache.head_dim;
  float* scores = scratch;
  float totals[2];
  float parts[2];
  for (int32_t r = 0; r < RowsOf(p, item); ++r) {
    const RowPlace place = PlaceOf(p, item, r);
    const RowSums total = {scores + kAttentionChunk, totals, totals + 1};
    const RowSums part = {total.acc + dim, parts, parts + 1};
    const int32_t first = place.first / kAttentionSplit;
    for (int32_t split = first; split * kAttentionSplit <= place.last; ++split) {
      AttendSplit(p, item, place, split, scores, split == first ? total : part);
      if (split > first) Join(total, part, dim);
    }
    for (int32_t d = 0; d < dim; ++d) place.out[d] = total.acc[d] / *total.sum;
  }
}

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

MaxResult Max(const float* x, int64_t n, float* block_max) {
  MaxResult r{kNegInf, -1, false};
  for (int64_t i = 0; i < n; ++i) {
    if (i % kMaxBlock == 0) block_max[i / kMaxBlock] = kNegInf;
    if (std::isnan(x[i])) r.has_nan = true;
    if (x[i] > block_max[i / kMaxBlock]) block_max[i / kMaxBlock] = x[i];
    if (x[i] > r.value) {
      r.value = x[i];
      r.index = static_cast<int32_t>(i);
    }
  }
  return r;
}

void ExpScaled(const float* x, int64_t n, float max, float inv_t, float* w) {
  for (int64_t i = 0; i < n; ++i) w[i] = std::exp((x[i] - max) * inv_t);
}

double ExpSum(const float* x, int64_t n, float max, double inv_t) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp((static_cast<double>(x[i]) - static_cast<double>(max)) * inv_t);
  return sum;
}

int64_t Gather(const float* x, int64_t n, float threshold, int32_t base, float* values, int32_t* ids) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] >= threshold) {
      values[count] = x[i];
      ids[count++] = base + static_cast<int32_t>(i);
    }
  }
  return count;
}

int64_t CountAbove(const float* x, int64_t n, float threshold) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += x[i] > threshold ? 1 : 0;
  return count;
}

Moments MomentsOf(const float* x, int64_t n, float center) {
  Moments m{0.0, 0.0, 0};
  for (int64_t i = 0; i < n; ++i) {
    if (!(x[i] > kNegInf)) continue;
    const double d = static_cast<double>(x[i]) - static_cast<double>(center);
    m.sum += d;
    m.sum_square += d * d;
    ++m.count;
  }
  return m;
}

void MaskBits(float* x, int64_t n, const int32_t* words) {
  for (int64_t i = 0; i < n; ++i) {
    if ((static_cast<uint32_t>(words[i / 32]) >> (i % 32) & 1) == 0) x[i] = kNegInf;
  }
}

}  // namespace

const Kernels kPlainKernels = {
    RmsNorm, Rope,   SiluMul,    Linear,    Narrow,  {Attention, AttentionSplit, AttentionJoin}, Max, ExpScaled,
    ExpSum,  Gather, CountAbove, MomentsOf, MaskBits};

}  // namespace fastllm::ops::cpu
