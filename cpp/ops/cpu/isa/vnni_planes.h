// Where the planes of a panel and of a tile of rows lie.
#pragma once

#include <cstdint>

#include "ops/cpu/quant_kernels.h"

namespace fastllm::ops::cpu {
namespace {

// The planes of one panel.
struct Panel {
  const uint8_t* low;
  const uint8_t* high;
  const uint8_t* d;
  const uint8_t* m;
};

// The planes of one tile of rows.
struct RowTile {
  const int8_t* q;
  const float* scale;
  const float* sum;
  const int32_t* shift;
};

// Row `at` of the plane that the format starts its sums from, rows being blocks or, in a fine set, halves.
template <QuantFormat F>
inline const int32_t* ShiftOf(const QuantRows& rows, int64_t at, int64_t half) {
  constexpr QuantTraits t = TraitsOf(F);
  if constexpr (t.offset == 8) return rows.shift8 + at;
  if constexpr (t.offset == 16) return rows.shift16 + at;
  if constexpr (t.offset == 128) return rows.shift128 + at;
  if constexpr (t.offset == 32) return rows.shift32 + half;
  return nullptr;
}

inline Panel PanelOf(const QuantWeight& weight, const QuantPanelLayout& layout, int64_t panel) {
  const uint8_t* data = weight.data + panel * layout.panel_bytes;
  return {data, data + layout.high, data + layout.d, data + layout.m};
}

// The planes of the tile of rows that starts at row `tile`.
template <QuantFormat F>
inline RowTile TileOf(const QuantRows& rows, int32_t tile) {
  constexpr QuantTraits t = TraitsOf(F);
  const int64_t blocks = rows.k / kQuantBlock;
  const int64_t half = 2 * tile * blocks;
  const int64_t at = rows.fine ? half : tile * blocks;
  return {rows.q + int64_t{tile} * rows.k, rows.scale + at, t.has_min ? rows.sum + tile * blocks : nullptr,
          ShiftOf<F>(rows, at, half)};
}

}  // namespace
}  // namespace fastllm::ops::cpu
