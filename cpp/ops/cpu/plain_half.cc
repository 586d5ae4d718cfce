// The plain arm of the linear over 16-bit weights: scalar, sums in order of k; the oracle of the others.
#include <bit>
#include <cmath>
#include <cstdint>

#include "ops/cpu/half.h"
#include "ops/cpu/half_kernels.h"

namespace fastllm::ops::cpu {
namespace {

float Widen(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

void Round(const float* x, int64_t k, int64_t padded, uint16_t* out) {
  for (int64_t i = 0; i < k; ++i) out[i] = FloatToBFloat(x[i]);
  for (int64_t i = k; i < padded; ++i) out[i] = 0;
}

// The second value of a pair before the first, as AVX-512's instruction adds them. Products are exact, so fma only
// keeps GCC 12 from vectorising this loop, which it does wrongly.
float BFloatDot(const uint16_t* x, const uint16_t* panel, int64_t lane, int64_t k) {
  float sum = 0.0f;
  for (int64_t j = 0; j < (k + 1) / 2; ++j) {
    const uint16_t* pair = panel + (j * kHalfPanel + lane) * 2;
    sum = std::fma(Widen(x[2 * j + 1]), Widen(pair[1]), sum);
    sum = std::fma(Widen(x[2 * j]), Widen(pair[0]), sum);
  }
  return sum;
}

float HalfDot(const float* x, const uint16_t* panel, int64_t lane, int64_t k) {
  float sum = 0.0f;
  for (int64_t i = 0; i < k; ++i) sum = std::fma(x[i], HalfToFloat(panel[i * kHalfPanel + lane]), sum);
  return sum;
}

template <typename T, float (*kDot)(const T*, const uint16_t*, int64_t, int64_t)>
void Linear(const HalfPanelJob& job) {
  const HalfWeight& w = *job.weight;
  for (int32_t panel = job.panel_begin; panel < job.panel_end; ++panel) {
    const uint16_t* data = w.data + panel * HalfPanelValues(w.k);
    for (int32_t lane = 0; lane < kHalfPanel && panel * kHalfPanel + lane < w.n; ++lane) {
      const int32_t n = panel * kHalfPanel + lane;
      for (int32_t row = job.row_begin; row < job.row_end; ++row) {
        const float sum = kDot(static_cast<const T*>(job.x) + row * job.x_stride, data, lane, w.k);
        job.out[row * job.out_stride + n] = job.bias == nullptr ? sum : sum + job.bias[n];
      }
    }
  }
}

}  // namespace

const HalfKernels kPlainHalfKernels = {Round, Linear<uint16_t, BFloatDot>, Linear<float, HalfDot>};

}  // namespace fastllm::ops::cpu
