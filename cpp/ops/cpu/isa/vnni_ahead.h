// What the tiles of a quantised linear ask memory for while they are computed.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/cpu/quant_kernels.h"

namespace fastllm::ops::cpu {
namespace {

// What a tile asks for while it is computed: the hardware's own prefetch ends with each page. One tile alone has its
// own panel come some lines ahead of it. Of several, each asks for some lines of every block of the next panel, so that
// memory is read all the time and not by the first tile alone. Panels follow one another in memory for `left` bytes
// from this panel's start on; what is read next lies at `then`.
struct Ahead {
  const uint8_t* panel = nullptr;  // null: nothing is asked for
  int64_t left = INT64_MAX;
  const uint8_t* then = nullptr;
  int32_t line = 0;  // the first of a block's, and from one to the next
  int32_t step = 1;
};
constexpr int64_t kPrefetchAhead = 6144;

// For tile `index` of a panel that meets `rows` rows.
inline Ahead AheadOf(const Ahead& whole, int32_t index, int32_t rows) {
  const int32_t tiles = (rows + kQuantTileRows - 1) / kQuantTileRows;
  if (index >= tiles) return {};
  return {whole.panel, whole.left, whole.then, index, tiles};
}

// Inline by force: GCC 12 takes a function of nothing but prefetches to have no effect and drops its calls.
template <QuantFormat F>
[[gnu::always_inline]] inline void Prefetch(const Ahead& ahead, int64_t b, int64_t blocks) {
  constexpr int64_t kBytes = PanelLayoutOf(F, 256).panel_bytes / 8;  // of a block
  const int64_t offset = b * kBytes + (ahead.step == 1 ? kPrefetchAhead : blocks * kBytes);
  const uint8_t* const next = offset < ahead.left ? ahead.panel + offset : ahead.then + (offset - ahead.left);
  const auto* const at = reinterpret_cast<const char*>(next);
  if (ahead.step == 1) {
#pragma GCC unroll 10
    for (int64_t line = 0; line < (kBytes + 63) / 64; ++line) _mm_prefetch(at + 64 * line, _MM_HINT_T0);
    return;
  }
  for (int64_t line = ahead.line; line < (kBytes + 63) / 64; line += ahead.step) {
    _mm_prefetch(at + 64 * line, _MM_HINT_T1);
  }
}

}  // namespace
}  // namespace fastllm::ops::cpu
