// The compression function of SHA-256 on the SHA extensions of x86-64, where the compiler targets that machine.
#include "core/base/sha256.h"

#include "core/base/check.h"
#include "core/base/sha256_rounds.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace fastllm {

#if defined(__x86_64__)
namespace {

#define FASTLLM_SHA_TARGET __attribute__((target("sha,sse4.1,ssse3")))

FASTLLM_SHA_TARGET __m128i Load(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

// Message words 4 after `a`, `b`, `c`, `d` (4 words each, oldest first).
FASTLLM_SHA_TARGET __m128i NextWords(__m128i a, __m128i b, __m128i c, __m128i d) {
  const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(a, b), _mm_alignr_epi8(d, c, 4));
  return _mm_sha256msg2_epu32(sum, d);
}

// The instructions keep the state as two vectors, {a, b, e, f} and {c, d, g, h}, highest word first.
FASTLLM_SHA_TARGET void CompressOne(__m128i* abef, __m128i* cdgh, const unsigned char* data) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll);
  const __m128i abef_before = *abef, cdgh_before = *cdgh;
  __m128i words[4];
  for (size_t i = 0; i < 4; ++i) words[i] = _mm_shuffle_epi8(Load(data + 16 * i), swap);
  for (size_t round = 0; round < 16; ++round) {
    const __m128i word = words[round % 4];
    const __m128i sum = _mm_add_epi32(word, Load(kSha256Round + 4 * round));
    *cdgh = _mm_sha256rnds2_epu32(*cdgh, *abef, sum);
    *abef = _mm_sha256rnds2_epu32(*abef, *cdgh, _mm_shuffle_epi32(sum, 0x0e));
    words[round % 4] = NextWords(word, words[(round + 1) % 4], words[(round + 2) % 4], words[(round + 3) % 4]);
  }
  *abef = _mm_add_epi32(*abef, abef_before);
  *cdgh = _mm_add_epi32(*cdgh, cdgh_before);
}

}  // namespace

bool Sha256HasInstructions() {
  // CPUID leaf 7, EBX bit 29 (SHA); leaf 1, ECX bits 9 and 19 (SSSE3, SSE4.1).
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (ebx & (1u << 29)) == 0) return false;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1u << 9)) != 0 && (ecx & (1u << 19)) != 0;
}

FASTLLM_SHA_TARGET void Sha256CompressInstructions(uint32_t* state, const unsigned char* data, size_t blocks) {
  const __m128i abcd = Load(state), efgh = Load(state + 4);  // lowest word first
  const __m128i badc = _mm_shuffle_epi32(abcd, 0xb1);        // words b a d c
  const __m128i hgfe = _mm_shuffle_epi32(efgh, 0x1b);        // words h g f e
  __m128i abef = _mm_alignr_epi8(badc, hgfe, 8);
  __m128i cdgh = _mm_blend_epi16(hgfe, badc, 0xf0);
  for (; blocks > 0; --blocks, data += 64) CompressOne(&abef, &cdgh, data);
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

#else

bool Sha256HasInstructions() { return false; }

void Sha256CompressInstructions(uint32_t*, const unsigned char*, size_t) {
  FASTLLM_CHECK(false, "this CPU has no SHA-256 instructions");
}

#endif

}  // namespace fastllm
