// The linear over 16-bit weights for AVX-512 with BF16: vdpbf16ps takes a pair of values of k in each lane.
#include "ops/cpu/isa/simd_avx512.h"

namespace fastllm::ops::cpu {
namespace {

inline Vec FirstOfPairs(const uint32_t* p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16)); }
inline Vec SecondOfPairs(const uint32_t* p) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int32_t>(0xFFFF0000u));
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), upper));
}

}  // namespace
}  // namespace fastllm::ops::cpu

#include "ops/cpu/isa/vector_half.h"

namespace fastllm::ops::cpu {
namespace {

struct PairBFloatStep {
  static constexpr int64_t kBytes = 4 * kHalfPanel;
  using X = __m512i;
  static X LoadX(const char* x) {
    int32_t pair;
    __builtin_memcpy(&pair, x, sizeof(pair));
    return _mm512_set1_epi32(pair);
  }
  using W = __m512i;
  static W LoadW(const char* w) { return _mm512_loadu_si512(w); }
  static Vec Add(Vec sum, X x, W w) { return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w); }
  static int64_t Steps(int32_t k) { return (int64_t{k} + 1) / 2; }
  static constexpr int64_t kXBytes = 2;
  static constexpr int kRows = 6;
  static constexpr int kPanels = 4;
};

}  // namespace

const HalfKernels kAvx512Bf16HalfKernels = {RoundRow, HalfLinear<PairBFloatStep>, HalfLinear<HalfFloatStep>};

}  // namespace fastllm::ops::cpu
