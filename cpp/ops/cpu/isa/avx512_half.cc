// The linear over 16-bit weights for AVX-512 without BF16.
#include "ops/cpu/isa/simd_avx512.h"

namespace fastllm::ops::cpu {
namespace {

// The first and the second values of kLanes pairs of bfloat16.
inline Vec FirstOfPairs(const uint32_t* p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16)); }
inline Vec SecondOfPairs(const uint32_t* p) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int32_t>(0xFFFF0000u));
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), upper));
}

}  // namespace
}  // namespace fastllm::ops::cpu

#include "ops/cpu/isa/vector_half.h"

namespace fastllm::ops::cpu {

const HalfKernels kAvx512HalfKernels = {RoundRow, HalfLinear<WideBFloatStep>, HalfLinear<HalfFloatStep>};

}  // namespace fastllm::ops::cpu
