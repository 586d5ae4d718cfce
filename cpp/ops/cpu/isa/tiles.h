// The tile instructions of AMX. With FASTLLM_EMULATED_TILES (CMake: FASTLLM_EMULATE_TILES) they are loops over a block
// of memory of the thread, so that the AMX arm can be tested on a processor that has AVX-512 alone; that is for tests
// and far slower.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace fastllm::ops::cpu {
namespace {

// What ldtilecfg reads: bytes of a row, and rows, of each tile.
struct alignas(64) TileConfig {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

}  // namespace
}  // namespace fastllm::ops::cpu

#ifdef FASTLLM_EMULATED_TILES
namespace fastllm::ops::cpu {
namespace {

struct EmulatedTiles {
  alignas(64) uint8_t data[8][16][64];
  int32_t rows[8];
  int32_t row_bytes[8];
};
thread_local EmulatedTiles emulated;

// `config` as ldtilecfg reads it: bytes of a row from byte 16, rows from byte 48.
inline void EmulateConfig(const void* config) {
  const auto* bytes = static_cast<const uint8_t*>(config);
  for (int t = 0; t < 8; ++t) {
    uint16_t row_bytes;
    __builtin_memcpy(&row_bytes, bytes + 16 + 2 * t, 2);
    emulated.row_bytes[t] = row_bytes;
    emulated.rows[t] = bytes[48 + t];
  }
  __builtin_memset(emulated.data, 0, sizeof(emulated.data));
}

inline void EmulateZero(int t) { __builtin_memset(emulated.data[t], 0, sizeof(emulated.data[t])); }

inline void EmulateLoad(int t, const void* from, int64_t stride) {
  for (int r = 0; r < emulated.rows[t]; ++r) {
    __builtin_memcpy(emulated.data[t][r], static_cast<const char*>(from) + r * stride, emulated.row_bytes[t]);
  }
}

inline void EmulateStore(int t, void* to, int64_t stride) {
  for (int r = 0; r < emulated.rows[t]; ++r) {
    __builtin_memcpy(static_cast<char*>(to) + r * stride, emulated.data[t][r], emulated.row_bytes[t]);
  }
}

// sums += a b: rows of a, the four bytes or two bfloat16 of a group of k, against the groups of b.
inline void EmulateBytes(int sums, int a, int b) {
  for (int r = 0; r < emulated.rows[sums]; ++r) {
    __m512i sum = _mm512_load_si512(emulated.data[sums][r]);
    for (int g = 0; g < emulated.rows[b]; ++g) {
      const __m512i w = _mm512_load_si512(emulated.data[b][g]);
      for (int i = 0; i < 4; ++i) {
        const __m512i value = _mm512_srai_epi32(_mm512_slli_epi32(w, 24 - 8 * i), 24);
        const auto x = static_cast<int8_t>(emulated.data[a][r][4 * g + i]);
        sum = _mm512_add_epi32(sum, _mm512_mullo_epi32(value, _mm512_set1_epi32(x)));
      }
    }
    _mm512_store_si512(emulated.data[sums][r], sum);
  }
}

inline void EmulatePairs(int sums, int a, int b) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int32_t>(0xFFFF0000u));
  for (int r = 0; r < emulated.rows[sums]; ++r) {
    __m512 sum = _mm512_load_ps(emulated.data[sums][r]);
    for (int g = 0; g < emulated.rows[b]; ++g) {
      const __m512i w = _mm512_load_si512(emulated.data[b][g]);
      int32_t pair;
      __builtin_memcpy(&pair, emulated.data[a][r] + 4 * g, 4);
      const __m512i x = _mm512_set1_epi32(pair);
      sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
                            _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)), sum);
      sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(x, upper)),
                            _mm512_castsi512_ps(_mm512_and_si512(w, upper)), sum);
    }
    _mm512_store_ps(emulated.data[sums][r], sum);
  }
}

}  // namespace
}  // namespace fastllm::ops::cpu

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) EmulateConfig(config)
#define _tile_release() static_cast<void>(0)
#define _tile_zero(t) EmulateZero(t)
#define _tile_loadd(t, from, stride) EmulateLoad(t, from, stride)
#define _tile_stored(t, to, stride) EmulateStore(t, to, stride)
#define _tile_dpbssd(sums, a, b) EmulateBytes(sums, a, b)
#define _tile_dpbf16ps(sums, a, b) EmulatePairs(sums, a, b)
#endif
