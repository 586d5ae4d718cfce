// The linear over 16-bit weights for AVX2.
#include "ops/cpu/isa/simd_avx2.h"

namespace fastllm::ops::cpu {
namespace {

// The first and the second values of kLanes pairs of bfloat16.
inline Vec FirstOfPairs(const uint32_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), 16));
}
inline Vec SecondOfPairs(const uint32_t* p) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int32_t>(0xFFFF0000u));
  return _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), upper));
}

}  // namespace
}  // namespace fastllm::ops::cpu

#include "ops/cpu/isa/vector_half.h"

namespace fastllm::ops::cpu {

const HalfKernels kAvx2HalfKernels = {RoundRow, HalfLinear<WideBFloatStep>, HalfLinear<HalfFloatStep>};

}  // namespace fastllm::ops::cpu
