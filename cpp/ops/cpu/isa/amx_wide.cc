// Quantised linears of many rows with AMX tiles of bfloat16: the weight's values are expanded, a few panels at a time,
// to tiles that stay in cache, and the sums over all of k stay in tiles of their own. A block of 16 rows of the weight
// by 32 values of k costs 22 ns to expand, whatever the number of rows that then meet it.
#include "ops/cpu/amx.h"
#include "ops/cpu/isa/amx_bfloat.h"
#include "ops/cpu/isa/amx_expand.h"
#include "ops/cpu/isa/simd_avx512.h"
#include "ops/cpu/isa/vector_kernels.h"
#include "ops/cpu/quant_kernels.h"

namespace fastllm::ops::cpu {
namespace {

static_assert(kTileRows == kWideTile && kQuantBlock == 32);

constexpr int64_t kLead = 2;  // steps by which panels are expanded ahead: a tile is not loaded right after its stores
constexpr int64_t kRing = 4;  // steps that are kept where no further rows come
constexpr int kMostPanels = 4;

// Some panels, expanded while the first rows meet them.
template <QuantFormat F>
struct ExpandedPanels {
  const uint8_t* source[kMostPanels];
  QuantPanelLayout layout;
  int64_t next_bytes;  // from a panel to the one that the next group has in its place
  char* tiles;         // [panel][step]
  int64_t panel_bytes;
  int64_t step_mask;  // of the steps that are kept
  int64_t steps;
  int count;
  bool expands;

  void Start() {
    for (int64_t s = 0; s < kLead && s < steps; ++s) Expand(s);
  }
  void Prepare(int64_t s) {
    if (expands && s + kLead < steps) Expand(s + kLead);
  }
  char* At(int p, int64_t s) const { return tiles + p * panel_bytes + (s & step_mask) * kTileBytes; }

 private:
  void Expand(int64_t s) {
    for (int p = 0; p < count; ++p) {
      Prefetch(source[p] + next_bytes, s);
      ExpandBlock<F>(source[p], layout, s, At(p, s));
    }
    asm volatile("" ::: "memory");  // tile loads are not known to the compiler as reads
  }

  // What block b of a panel is read from: its planes are apart, so no one distance ahead would do for all.
  void Prefetch(const uint8_t* panel, int64_t b) const {
    constexpr QuantTraits t = TraitsOf(F);
    constexpr int64_t kLow = t.bits == 8 ? 512 : 256;
    constexpr int64_t kScales = kQuantPanel * (t.float_scale ? 4 : 2);
#pragma GCC unroll 8
    for (int64_t i = 0; i < kLow; i += 64) _mm_prefetch(Line(panel, b * kLow + i), _MM_HINT_T1);
    if constexpr (t.bits == 5) _mm_prefetch(Line(panel, layout.high + b * 64), _MM_HINT_T1);
    _mm_prefetch(Line(panel, layout.d + b * kScales * (32 / t.group)), _MM_HINT_T1);
    if constexpr (t.group == 16) _mm_prefetch(Line(panel, layout.d + (2 * b + 1) * kScales), _MM_HINT_T1);
    if constexpr (t.has_min) _mm_prefetch(Line(panel, layout.m + b * kScales), _MM_HINT_T1);
  }
  static const char* Line(const uint8_t* panel, int64_t at) { return reinterpret_cast<const char*>(panel + at); }
};

int32_t RowsLeft(const WideJob& job, int32_t row) {
  return job.row_end - row < kTileRows ? job.row_end - row : kTileRows;
}

void StoreSums(const WideJob& job, const float* sums, int32_t row, int32_t panel) {
  if (row >= job.row_end) return;
  const int32_t n = panel * kQuantPanel;
  StoreTile({job.out + int64_t{row} * job.out_stride + n, job.out_stride, job.bias == nullptr ? nullptr : job.bias + n,
             RowsLeft(job, row), job.weight->n - n},
            sums);
}

// silu(gate) * up of one panel each. Columns past the last are zeros, as rows past a weight's last are.
void StoreGated(const WideJob& job, const float* gate, const float* up, int32_t row, int32_t panel) {
  if (row >= job.row_end) return;
  const int64_t n = job.weight->n;
  uint16_t* to = job.gated + WideRow(row, n) + panel / 2 * (kTileRows * 32) + panel % 2 * 16;
  for (int32_t r = 0; r < RowsLeft(job, row); ++r) {
    StoreBF16(to + 32 * r, SiluTimes(Load(gate + 16 * r), Load(up + 16 * r)));
  }
}

// The sums of panels by rows: P panels of the weight, or P / 2 of the gate and as many of the other one.
template <QuantFormat F>
class Group {
 public:
  Group(const WideJob& job, int32_t panel, int32_t count, char* scratch) : job_(job), panel_(panel) {
    const int64_t k = job.weight->k;
    const bool gated = job.up != nullptr;
    w_.layout = PanelLayoutOf(F, job.weight->k);
    w_.steps = k / kQuantBlock;
    w_.count = gated ? 2 * count : count;
    w_.next_bytes = count * w_.layout.panel_bytes;
    for (int p = 0; p < w_.count; ++p) {
      const QuantWeight& weight = p < count ? *job.weight : *job.up;
      w_.source[p] = weight.data + (panel + p % count) * w_.layout.panel_bytes;
    }
    w_.tiles = scratch;
    w_.expands = true;
    // Where all rows meet a panel at once, only its last steps are kept.
    const int32_t rows = job.row_end - job.row_begin;
    const bool once = rows <= kTileRows ? w_.count == kMostPanels : rows <= 2 * kTileRows && w_.count == 2;
    w_.step_mask = once ? kRing - 1 : ~int64_t{0};
    w_.panel_bytes = once ? kRing * kTileBytes : w_.steps * kTileBytes;
  }

  void Run(float* sums) {
    w_.Start();
    int32_t row = job_.row_begin;
    for (; job_.row_end - row > kTileRows; row += 2 * kTileRows) Multiply(row, 2, sums);
    if (row < job_.row_end) Multiply(row, 1, sums);
  }

 private:
  // sums: [row tiles][panels]
  void Multiply(int32_t row, int32_t tiles, float* sums) {
    const int64_t tile_bytes = w_.steps * kTileBytes;
    const TileOfX at = {reinterpret_cast<const char*>(job_.x) + row / kTileRows * tile_bytes, 64, kTileBytes,
                        tile_bytes};
    if (tiles == 2 && w_.count == 2) {
      TwiceRowsAgainstTwo(at, w_.steps, w_, sums);
    } else if (tiles == 1 && w_.count == kMostPanels) {
      RowsAgainstFour(at, w_.steps, w_, sums);
    } else {
      for (int i = 0; i < tiles * w_.count; ++i) {
        const TileOfX one = {at.x + i / w_.count * tile_bytes, at.row, at.step, at.tile};
        RowsAgainstOne(one, w_.steps, w_, i % w_.count, sums + 256 * i);
        w_.expands = false;
      }
    }
    w_.expands = false;
    for (int32_t t = 0; t < tiles; ++t) Store(row + t * kTileRows, sums + 256 * t * w_.count);
  }

  void Store(int32_t row, const float* sums) const {
    const int half = w_.count / 2;
    for (int p = 0; p < (job_.up == nullptr ? w_.count : half); ++p) {
      if (job_.up == nullptr) {
        StoreSums(job_, sums + 256 * p, row, panel_ + p);
      } else {
        StoreGated(job_, sums + 256 * p, sums + 256 * (half + p), row, panel_ + p);
      }
    }
  }

  const WideJob& job_;
  int32_t panel_;
  ExpandedPanels<F> w_;
};

template <QuantFormat F>
void PanelsOf(const WideJob& job) {
  alignas(64) float sums[kMostPanels * 256];
  const bool few = job.row_end - job.row_begin <= kTileRows;
  const int32_t group = (few ? kMostPanels : 2) / (job.up == nullptr ? 1 : 2);
  char* const scratch = AmxScratch(kMostPanels * (job.weight->k / kQuantBlock + kRing) * kTileBytes);
  _tile_loadconfig(&kWholeTiles);
  for (int32_t panel = job.panel_begin; panel < job.panel_end; panel += group) {
    const int32_t left = job.panel_end - panel;
    Group<F>(job, panel, left < group ? left : group, scratch).Run(sums);
  }
  _tile_release();
}

void Linear(const WideJob& job) {
  switch (job.weight->format) {
    case QuantFormat::kQ4_0: return PanelsOf<QuantFormat::kQ4_0>(job);
    case QuantFormat::kQ4_1: return PanelsOf<QuantFormat::kQ4_1>(job);
    case QuantFormat::kQ5_0: return PanelsOf<QuantFormat::kQ5_0>(job);
    case QuantFormat::kQ5_1: return PanelsOf<QuantFormat::kQ5_1>(job);
    case QuantFormat::kQ8_0: return PanelsOf<QuantFormat::kQ8_0>(job);
    case QuantFormat::kQ4_K: return PanelsOf<QuantFormat::kQ4_K>(job);
    case QuantFormat::kQ5_K: return PanelsOf<QuantFormat::kQ5_K>(job);
    case QuantFormat::kQ6_K: return PanelsOf<QuantFormat::kQ6_K>(job);
  }
}

void Round(const float* x, int64_t k, uint16_t* to) {
  for (int64_t i = 0; i < k; i += 32) {
    StoreBF16(to + i * kTileRows, Load(x + i));
    StoreBF16(to + i * kTileRows + 16, Load(x + i + 16));
  }
}

}  // namespace

const WideKernels kAmxWideKernels = {Round, Linear};

}  // namespace fastllm::ops::cpu
