// The linear over 16-bit weights, over the vector names of simd_<isa>.h. Included by one file per instruction set.
//
// A panel's 16 rows are lanes, so a sum never crosses lanes: it runs over k in order, whatever tile of rows and panels
// it is computed in. A Step says what one turn of the loop over k does: kBytes of a panel, and 4 bytes of a row of x.
// Its largest tile is kRows rows against kPanels panels: as many sums as the registers hold, and enough of them in
// flight for a single row.
#pragma once

#include "ops/cpu/half_kernels.h"

namespace fastllm::ops::cpu {
namespace {

constexpr int kParts = kHalfPanel / kLanes;  // vectors of a panel
constexpr int64_t kPrefetchBytes = 3072;

// Pairs of bfloat16, the second value before the first. Products are exact, so a fused multiply-add rounds as an
// addition does.
struct WideBFloatStep {
  static constexpr int64_t kBytes = 4 * kHalfPanel;
  struct X {
    Vec first, second;
  };
  static X LoadX(const char* x) {
    uint32_t pair;
    __builtin_memcpy(&pair, x, sizeof(pair));
    const uint32_t low = pair << 16;
    const uint32_t high = pair & 0xFFFF0000u;
    float first, second;
    __builtin_memcpy(&first, &low, sizeof(first));
    __builtin_memcpy(&second, &high, sizeof(second));
    return {Set(first), Set(second)};
  }
  struct W {
    Vec first, second;
  };
  static W LoadW(const char* w) {
    const auto* pairs = reinterpret_cast<const uint32_t*>(w);
    return {FirstOfPairs(pairs), SecondOfPairs(pairs)};
  }
  static Vec Add(Vec sum, const X& x, const W& w) { return Fma(x.first, w.first, Fma(x.second, w.second, sum)); }
  static int64_t Steps(int32_t k) { return (int64_t{k} + 1) / 2; }
  static constexpr int64_t kXBytes = 2;  // of an element of a row
  static constexpr int kRows = kLanes == 16 ? 4 : 2;
  static constexpr int kPanels = kLanes == 16 ? 4 : 2;
};

struct HalfFloatStep {
  static constexpr int64_t kBytes = 2 * kHalfPanel;
  using X = Vec;
  static X LoadX(const char* x) {
    float value;
    __builtin_memcpy(&value, x, sizeof(value));
    return Set(value);
  }
  using W = Vec;
  static W LoadW(const char* w) { return LoadF16(reinterpret_cast<const uint16_t*>(w)); }
  static Vec Add(Vec sum, const X& x, const W& w) { return Fma(x, w, sum); }
  static int64_t Steps(int32_t k) { return k; }
  static constexpr int64_t kXBytes = 4;
  static constexpr int kRows = kLanes == 16 ? 6 : 2;
  static constexpr int kPanels = kLanes == 16 ? 4 : 2;
};

// The line that stream `p` of P panels side by side reads kPrefetchBytes later: the next panel of a stream lies P
// panels on.
inline void PrefetchStream(const char* w, int64_t at, int64_t panel_bytes, int p, int panels) {
  const int64_t ahead = at + kPrefetchBytes;
  const int64_t jump = ahead < panel_bytes ? 0 : (panels - 1) * panel_bytes;
  _mm_prefetch(w + p * panel_bytes + ahead + jump, _MM_HINT_T0);
}

// The same line of the next P panels, for a weight that several tiles of rows meet: each asks for a part of it, so that
// memory is read all the time and not by the first tile alone.
struct HalfAhead {
  int64_t next = 0;  // the step at which lines are asked for next
  int64_t steps;     // from one to the next
};

// R rows from `row` against P panels from `panel`; kAlone: no other tile of rows meets them.
template <typename Step, int P, int R, bool kAlone>
inline void HalfTile(const HalfPanelJob& job, int32_t panel, int32_t row, HalfAhead ahead) {
  const HalfWeight& weight = *job.weight;
  const int64_t panel_bytes = HalfPanelValues(weight.k) * 2;
  const int64_t x_bytes = job.x_stride * Step::kXBytes;
  const char* w = reinterpret_cast<const char*>(weight.data) + panel * panel_bytes;
  const char* x = static_cast<const char*>(job.x) + row * x_bytes;
  Vec sum[P][kParts][R];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
    for (int c = 0; c < kParts; ++c) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[p][c][r] = Set(0.0f);
    }
  }
  const int64_t steps = Step::Steps(weight.k);
  for (int64_t j = 0; j < steps; ++j) {
    const int64_t at = j * Step::kBytes;
    typename Step::X xs[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) xs[r] = Step::LoadX(x + r * x_bytes + 4 * j);
    if (!kAlone && j == ahead.next) {
      ahead.next += ahead.steps;
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) _mm_prefetch(w + (P + p) * panel_bytes + at, _MM_HINT_T1);
    }
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      if constexpr (kAlone) PrefetchStream(w, at, panel_bytes, p, P);
#pragma GCC unroll 8
      for (int c = 0; c < kParts; ++c) {
        const auto ws = Step::LoadW(w + p * panel_bytes + at + c * (Step::kBytes / kParts));
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) sum[p][c][r] = Step::Add(sum[p][c][r], xs[r], ws);
      }
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
    for (int c = 0; c < kParts; ++c) {
      const int32_t n = (panel + p) * kHalfPanel + c * kLanes;
      const int32_t valid = weight.n - n < kLanes ? weight.n - n : kLanes;
      if (valid <= 0) continue;
      const Vec bias = job.bias == nullptr ? Set(0.0f) : LoadFirst(job.bias + n, valid);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec value = job.bias == nullptr ? sum[p][c][r] : cpu::Add(sum[p][c][r], bias);
        StoreFirst(job.out + (row + r) * job.out_stride + n, value, valid);
      }
    }
  }
}

// `count` rows, at most R.
template <typename Step, int P, int R, bool kAlone>
inline void HalfRows(const HalfPanelJob& job, int32_t panel, int32_t row, int32_t count, const HalfAhead& ahead) {
  if constexpr (R > 1) {
    if (count < R) return HalfRows<Step, P, R - 1, kAlone>(job, panel, row, count, ahead);
  }
  HalfTile<Step, P, R, kAlone>(job, panel, row, ahead);
}

// All rows of the job against P panels.
template <typename Step, int P>
inline void HalfPanelGroup(const HalfPanelJob& job, int32_t panel) {
  constexpr int32_t kRows = Step::kRows;
  const int32_t rows = job.row_end - job.row_begin;
  if (rows <= kRows) return HalfRows<Step, P, kRows, true>(job, panel, job.row_begin, rows, {0, 1});
  // A line of the weight is one step of bfloat16, or two of float16.
  constexpr int64_t kLineSteps = 64 / Step::kBytes > 1 ? 64 / Step::kBytes : 1;
  HalfAhead ahead = {0, (rows + kRows - 1) / kRows * kLineSteps};
  for (int32_t row = job.row_begin; row < job.row_end; row += kRows) {
    HalfRows<Step, P, kRows, false>(job, panel, row, job.row_end - row, ahead);
    ahead.next += kLineSteps;
  }
}

template <typename Step>
void HalfLinear(const HalfPanelJob& job) {
  int32_t panel = job.panel_begin;
  for (; panel + Step::kPanels <= job.panel_end; panel += Step::kPanels) {
    HalfPanelGroup<Step, Step::kPanels>(job, panel);
  }
  for (; panel < job.panel_end; ++panel) HalfPanelGroup<Step, 1>(job, panel);
}

void RoundRow(const float* x, int64_t k, int64_t padded, uint16_t* out) {
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) StoreBF16(out + i, Load(x + i));
  for (; i < padded; i += kLanes) {  // padded is a multiple of the lanes
    const int64_t left = k - i;
    StoreBF16(out + i, left > 0 ? LoadFirst(x + i, static_cast<int>(left)) : Set(0.0f));
  }
}

}  // namespace
}  // namespace fastllm::ops::cpu
