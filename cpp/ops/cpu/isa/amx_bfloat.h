// Loops of AMX tiles over bfloat16, for the linears whose weight is of 16 bits or is expanded to them: 16 rows of x
// against 16 rows of the weight, 32 values of k at once, the sums kept in the tiles. Included by one file per linear.
//
// Where the tiles of the weight come from is a parameter: Prepare(s) is called before step s is multiplied (a step is
// 32 values of k), and At(p, s) is then the tile of panel p. Rows that are not there are zeros or leftovers whose sums
// nobody stores.
#pragma once

#include "ops/cpu/isa/tiles.h"

namespace fastllm::ops::cpu {
namespace {

constexpr int32_t kTileRows = 16;
constexpr int64_t kTileBytes = 1024;

// All eight tiles whole: 16 rows of 64 bytes. A constant: the compiler takes ldtilecfg to read eight bytes only, and
// would not write the rest of a local one.
constexpr TileConfig kWholeTiles = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

// The first of 16 rows of x, and the bytes from there to the next row, step, and 16 rows.
struct TileOfX {
  const char* x;
  int64_t row;
  int64_t step;
  int64_t tile;
};

// sums: tiles of 16 x 16, one after the other.
template <typename Weight>
void RowsAgainstFour(const TileOfX& at, int64_t steps, Weight& w, float* sums) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t s = 0; s < steps; ++s) {
    w.Prepare(s);
    _tile_loadd(4, at.x + s * at.step, at.row);
    _tile_loadd(5, w.At(0, s), 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, w.At(1, s), 64);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, w.At(2, s), 64);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, w.At(3, s), 64);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + 256, 64);
  _tile_stored(2, sums + 512, 64);
  _tile_stored(3, sums + 768, 64);
}

// Against panel p of the weight.
template <typename Weight>
void RowsAgainstOne(const TileOfX& at, int64_t steps, Weight& w, int p, float* sums) {
  _tile_zero(0);
  for (int64_t s = 0; s < steps; ++s) {
    w.Prepare(s);
    _tile_loadd(4, at.x + s * at.step, at.row);
    _tile_loadd(5, w.At(p, s), 64);
    _tile_dpbf16ps(0, 4, 5);
  }
  _tile_stored(0, sums, 64);
}

// 32 rows against two panels: sums of rows 0 to 15 with both, then of rows 16 to 31.
template <typename Weight>
void TwiceRowsAgainstTwo(const TileOfX& at, int64_t steps, Weight& w, float* sums) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t s = 0; s < steps; ++s) {
    w.Prepare(s);
    const char* x = at.x + s * at.step;
    _tile_loadd(4, x, at.row);
    _tile_loadd(6, w.At(0, s), 64);
    _tile_loadd(5, x + at.tile, at.row);
    _tile_loadd(7, w.At(1, s), 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + 256, 64);
  _tile_stored(2, sums + 512, 64);
  _tile_stored(3, sums + 768, 64);
}

// Where a tile of sums goes.
struct OutTile {
  float* out;
  int64_t stride;     // elements between rows
  const float* bias;  // of the first column, or null
  int32_t rows;       // that there are, at most kTileRows
  int32_t columns;    // at most 16
};

inline void StoreTile(const OutTile& to, const float* sums) {
  const __mmask16 lanes = to.columns >= 16 ? 0xFFFF : static_cast<__mmask16>((1u << to.columns) - 1);
  const __m512 bias = to.bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes, to.bias);
  for (int32_t r = 0; r < to.rows; ++r) {
    __m512 v = _mm512_load_ps(sums + 16 * r);
    if (to.bias != nullptr) v = _mm512_add_ps(v, bias);
    _mm512_mask_storeu_ps(to.out + r * to.stride, lanes, v);
  }
}

}  // namespace
}  // namespace fastllm::ops::cpu
