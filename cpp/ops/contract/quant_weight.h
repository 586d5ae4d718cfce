#pragma once

#include "ops/contract/common.h"

namespace fastllm::ops {

// Block formats that a linear layer computes from without decoding them to floats. A value is d * (q - offset), or
// d * q + m where the format has a minimum; d, m and q are those of the GGUF block of the same name, unchanged.
enum class QuantFormat : uint8_t {
  kQ4_0 = 0,
  kQ4_1 = 1,
  kQ5_0 = 2,
  kQ5_1 = 3,
  kQ8_0 = 4,
  kQ4_K = 5,
  kQ5_K = 6,
  kQ6_K = 7,
};
inline constexpr int32_t kNumQuantFormats = 8;

inline constexpr int32_t kQuantPanel = 16;  // output rows that lie together, one per vector lane
inline constexpr int32_t kQuantBlock = 32;  // values of k that share a scale of x

// What distinguishes the formats once they are packed.
struct QuantTraits {
  const char* name;
  int32_t bits;            // of q as packed: 4, 5 or 8
  int32_t group;           // values that share d: 32, or 16
  int32_t offset;          // taken off q; 0 where there is a minimum
  bool has_min;            // m is stored
  bool float_scale;        // d and m are float32 (products of two GGUF scales), else float16
  int32_t block_elements;  // of the GGUF block
  int32_t block_bytes;
};

constexpr QuantTraits TraitsOf(QuantFormat f) {
  switch (f) {
    case QuantFormat::kQ4_0: return {"Q4_0", 4, 32, 8, false, false, 32, 18};
    case QuantFormat::kQ4_1: return {"Q4_1", 4, 32, 0, true, false, 32, 20};
    case QuantFormat::kQ5_0: return {"Q5_0", 5, 32, 16, false, false, 32, 22};
    case QuantFormat::kQ5_1: return {"Q5_1", 5, 32, 0, true, false, 32, 24};
    case QuantFormat::kQ8_0: return {"Q8_0", 8, 32, 128, false, false, 32, 34};
    case QuantFormat::kQ4_K: return {"Q4_K", 4, 32, 0, true, true, 256, 144};
    case QuantFormat::kQ5_K: return {"Q5_K", 5, 32, 0, true, true, 256, 176};
    case QuantFormat::kQ6_K: return {"Q6_K", 8, 16, 32, false, true, 256, 210};
  }
  return {"unknown", 0, 0, 0, false, false, 0, 0};
}

// A packed matrix [n, k]. Panels of kQuantPanel rows follow one another, each panel_bytes long; the last is filled up
// with rows of zeros. With B = k / 32 blocks, a panel holds four planes, one after the other:
//   low    [B][4][16][4] bytes (4 and 5 bits): byte (b, j, row, i) has q of k = 32 b + 4 j + i in its low half, and of
//          k = 32 b + 16 + 4 j + i in its high half; or [B][8][16][4] (8 bits): q of k = 32 b + 4 j + i
//   high   [B][8] 64-bit words (5 bits only): bit 4 row + i of word (b, j) is bit 4 of q of k = 32 b + 4 j + i
//   d      [B * 32 / group][16] float16 or float32
//   m      [B][16] likewise, where the format has a minimum
struct QuantWeight {
  const uint8_t* data = nullptr;  // 64-byte aligned
  int32_t n = 0;
  int32_t k = 0;  // a multiple of the block of the GGUF format
  QuantFormat format = QuantFormat::kQ8_0;
};

// Bytes from the start of a panel to each plane, and to the next panel.
struct QuantPanelLayout {
  int64_t high;
  int64_t d;
  int64_t m;
  int64_t panel_bytes;
};

constexpr QuantPanelLayout PanelLayoutOf(QuantFormat format, int32_t k) {
  const QuantTraits t = TraitsOf(format);
  const int64_t blocks = k / kQuantBlock;
  const int64_t scale_bytes = kQuantPanel * (t.float_scale ? 4 : 2);
  const int64_t high = blocks * kQuantPanel * kQuantBlock * (t.bits == 8 ? 8 : 4) / 8;
  const int64_t d = high + (t.bits == 5 ? blocks * 64 : 0);
  const int64_t m = d + blocks * (kQuantBlock / t.group) * scale_bytes;
  const int64_t end = m + (t.has_min ? blocks * scale_bytes : 0);
  return {high, d, m, (end + 63) / 64 * 64};
}

constexpr int64_t NumPanels(int64_t n) { return (n + kQuantPanel - 1) / kQuantPanel; }
constexpr int64_t PackedBytes(QuantFormat format, int64_t n, int32_t k) {
  return NumPanels(n) * PanelLayoutOf(format, k).panel_bytes;
}

}  // namespace fastllm::ops
