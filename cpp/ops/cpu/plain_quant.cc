// The plain arm of the quantised linear: scalar, in the order of the contract's formulas; the oracle of the others.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "ops/cpu/half.h"
#include "ops/cpu/quant_kernels.h"

namespace fastllm::ops::cpu {
namespace {

// Below this a block counts as zeros: 127 / amax would not be finite.
constexpr float kLeastMax = 1e-30f;

// Row r of the tile's planes for a block whose q are given, with the scales of its halves (equal unless fine).
void StoreBlock(const QuantRows& rows, int64_t tile, int32_t count, int32_t r, int64_t b, const int8_t* q,
                const float* scale) {
  const int64_t blocks = rows.k / kQuantBlock;
  int32_t sum[2] = {0, 0};
  for (int32_t i = 0; i < kQuantBlock; ++i) {
    sum[i / 16] += q[i];
    rows.q[tile * rows.k + (b * kQuantBlock + i) / 4 * 4 * count + r * 4 + i % 4] = q[i];
  }
  const int64_t at = tile * blocks + b * count + r;
  const int64_t half[2] = {2 * tile * blocks + 2 * b * count + r, 2 * tile * blocks + (2 * b + 1) * count + r};
  for (int32_t h = 0; h < 2; ++h) {
    if (rows.shift32 != nullptr) rows.shift32[half[h]] = -32 * sum[h];
    if (!rows.fine) continue;
    rows.scale[half[h]] = scale[h];
    if (rows.shift8 != nullptr) rows.shift8[half[h]] = -8 * sum[h];
    if (rows.shift16 != nullptr) rows.shift16[half[h]] = -16 * sum[h];
    if (rows.shift128 != nullptr) rows.shift128[half[h]] = -128 * sum[h];
  }
  if (rows.fine) {
    if (rows.sum == nullptr) return;
    const float first = scale[0] * static_cast<float>(sum[0]);
    const float second = scale[1] * static_cast<float>(sum[1]);
    rows.sum[at] = first + second;
    return;
  }
  const int32_t whole = sum[0] + sum[1];
  rows.scale[at] = scale[0];
  if (rows.sum != nullptr) rows.sum[at] = scale[0] * static_cast<float>(whole);
  if (rows.shift8 != nullptr) rows.shift8[at] = -8 * whole;
  if (rows.shift16 != nullptr) rows.shift16[at] = -16 * whole;
  if (rows.shift128 != nullptr) rows.shift128[at] = -128 * whole;
}

// Rounds n values that share a scale; returns the scale.
float RoundGroup(const float* values, int32_t n, int8_t* q) {
  uint32_t max = 0;  // of the magnitudes as integers: a NaN is above all numbers
  for (int32_t i = 0; i < n; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(values[i]) & 0x7FFFFFFFu;
    if (magnitude > max) max = magnitude;
  }
  const float amax = std::bit_cast<float>(max);
  const float inverse = amax >= kLeastMax ? 127.0f / amax : 0.0f;
  for (int32_t i = 0; i < n; ++i) {
    const float v = values[i] * inverse;
    q[i] = std::isnan(v) ? int8_t{-128} : static_cast<int8_t>(std::nearbyint(v));
  }
  return amax / 127.0f;
}

void Quantize(const float* x, const QuantRows& rows, int32_t tile, int32_t count, int32_t row) {
  for (int32_t b = 0; b < rows.k / kQuantBlock; ++b) {
    const float* values = x + int64_t{row} * rows.k + int64_t{b} * kQuantBlock;
    int8_t q[kQuantBlock];
    float scale[2];
    if (rows.fine) {
      scale[0] = RoundGroup(values, 16, q);
      scale[1] = RoundGroup(values + 16, 16, q + 16);
    } else {
      scale[0] = scale[1] = RoundGroup(values, kQuantBlock, q);
    }
    StoreBlock(rows, tile, count, row - tile, b, q, scale);
  }
}

// One row of a panel.
class PanelRow {
 public:
  PanelRow(const QuantWeight& w, int64_t panel, int32_t lane)
      : traits_(TraitsOf(w.format)),
        layout_(PanelLayoutOf(w.format, w.k)),
        data_(w.data + panel * layout_.panel_bytes),
        lane_(lane) {}

  // q of k = 32 b + i, as packed.
  int32_t Q(int64_t b, int32_t i) const {
    if (traits_.bits == 8) return data_[((b * 8 + i / 4) * kQuantPanel + lane_) * 4 + i % 4];
    const uint8_t byte = data_[((b * 4 + i % 16 / 4) * kQuantPanel + lane_) * 4 + i % 4];
    int32_t q = i < 16 ? byte & 15 : byte >> 4;
    if (traits_.bits == 5) {
      uint64_t word;
      std::memcpy(&word, data_ + layout_.high + (b * 8 + i / 4) * 8, sizeof(word));
      q |= static_cast<int32_t>(word >> (4 * lane_ + i % 4) & 1) << 4;
    }
    return q;
  }
  float D(int64_t group) const { return Scale(layout_.d, group); }
  float M(int64_t block) const { return Scale(layout_.m, block); }
  const QuantTraits& traits() const { return traits_; }

 private:
  float Scale(int64_t plane, int64_t index) const {
    const int64_t at = index * kQuantPanel + lane_;
    if (!traits_.float_scale) return HalfToFloat(data_ + plane + 2 * at);
    float f;
    std::memcpy(&f, data_ + plane + 4 * at, sizeof(f));
    return f;
  }

  QuantTraits traits_;
  QuantPanelLayout layout_;
  const uint8_t* data_;
  int32_t lane_;
};

// The sum of q xq over values [first, first + n) of block b, as a float: row r of the tile of `count` rows at `tile`.
float GroupSum(const QuantRows& rows, int64_t tile, int32_t count, int32_t r, const PanelRow& w, int64_t b,
               int32_t first, int32_t n) {
  int32_t sum = 0;
  for (int32_t i = first; i < first + n; ++i) {
    const int32_t x = rows.q[tile * rows.k + (b * kQuantBlock + i) / 4 * 4 * count + r * 4 + i % 4];
    sum += (w.Q(b, i) - w.traits().offset) * x;
  }
  return static_cast<float>(sum);
}

float Dot(const QuantRows& rows, int64_t tile, int32_t count, int32_t r, const PanelRow& w) {
  const int64_t blocks = rows.k / kQuantBlock;
  const QuantTraits& t = w.traits();
  float acc = 0.0f;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t at = tile * blocks + b * count + r;
    const int64_t half = 2 * tile * blocks + 2 * b * count + r;
    const float scale0 = rows.scale[rows.fine ? half : at];
    const float scale1 = rows.scale[rows.fine ? half + count : at];
    if (t.group == 16) {
      acc = std::fma(GroupSum(rows, tile, count, r, w, b, 0, 16), w.D(2 * b) * scale0, acc);
      acc = std::fma(GroupSum(rows, tile, count, r, w, b, 16, 16), w.D(2 * b + 1) * scale1, acc);
    } else if (rows.fine) {
      const float part = GroupSum(rows, tile, count, r, w, b, 0, 16) * scale0;
      acc = std::fma(std::fma(GroupSum(rows, tile, count, r, w, b, 16, 16), scale1, part), w.D(b), acc);
    } else {
      acc = std::fma(GroupSum(rows, tile, count, r, w, b, 0, kQuantBlock), w.D(b) * scale0, acc);
    }
    if (t.has_min) acc = std::fma(w.M(b), rows.sum[at], acc);
  }
  return acc;
}

void Linear(const QuantPanelJob& job) {
  const QuantWeight& w = *job.weight;
  for (int32_t panel = job.panel_begin; panel < job.panel_end; ++panel) {
    for (int32_t lane = 0; lane < kQuantPanel && panel * kQuantPanel + lane < w.n; ++lane) {
      const PanelRow row(w, panel, lane);
      const int32_t n = panel * kQuantPanel + lane;
      for (int32_t tile = job.row_begin; tile < job.row_end;) {
        const int32_t count = TileRows(job.rows->num_rows - tile);
        for (int32_t r = 0; r < count; ++r) {
          const float sum = Dot(*job.rows, tile, count, r, row);
          job.out[(tile + r) * job.out_stride + n] = job.bias == nullptr ? sum : sum + job.bias[n];
        }
        tile += count;
      }
    }
  }
}

}  // namespace

const QuantKernels kPlainQuantKernels = {Quantize, Linear};

void DequantizeRow(const QuantWeight& w, int64_t row, float* out) {
  const PanelRow r(w, row / kQuantPanel, static_cast<int32_t>(row % kQuantPanel));
  const QuantTraits& t = r.traits();
  for (int64_t group = 0; group < w.k / t.group; ++group) {
    const float d = r.D(group);
    const float m = t.has_min ? r.M(group) : 0.0f;  // groups are whole blocks where there is a minimum
    for (int32_t i = 0; i < t.group; ++i) {
      const int64_t k = group * t.group + i;
      const float value =
          d * static_cast<float>(r.Q(k / kQuantBlock, static_cast<int32_t>(k % kQuantBlock)) - t.offset);
      out[k] = t.has_min ? value + m : value;
    }
  }
}

}  // namespace fastllm::ops::cpu
