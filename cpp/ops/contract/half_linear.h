#pragma once

#include "ops/contract/common.h"

namespace fastllm::ops {

inline constexpr int32_t kHalfPanel = 16;  // output rows that lie together, one per vector lane
inline constexpr int32_t kHalfStep = 32;   // k is filled up with zeros to a multiple of this

// A matrix [n, k] of 16-bit floats, the numbers of the checkpoint unchanged. Panels of kHalfPanel rows follow one
// another, the last filled up with rows of zeros. With K, k rounded up to kHalfStep, a panel is
//   bfloat16  [K / 2][16][2]: values 2 j and 2 j + 1 of a row side by side
//   float16   [K][16]
struct HalfWeight {
  const uint16_t* data = nullptr;  // 64-byte aligned
  int32_t n = 0;
  int32_t k = 0;
  DType dtype = DType::kBF16;  // or kF16
};

constexpr int64_t HalfPaddedK(int32_t k) { return (int64_t{k} + kHalfStep - 1) / kHalfStep * kHalfStep; }
constexpr int64_t HalfPanels(int64_t n) { return (n + kHalfPanel - 1) / kHalfPanel; }
// Values of a panel, and bytes of a whole packed weight.
constexpr int64_t HalfPanelValues(int32_t k) { return HalfPaddedK(k) * kHalfPanel; }
constexpr int64_t HalfBytes(int64_t n, int32_t k) { return HalfPanels(n) * HalfPanelValues(k) * 2; }

// out[t, :] = x[t, :] W^T + bias, where the rows of W are those of `parts` one after the other. Sums are float32.
// Beside a bfloat16 part, x is rounded to bfloat16 (nearest even), so that products of pairs are exact; beside a
// float16 part it stays float32. An element's bits depend on its row of x and of W and on the arm: not on the rows
// beside it or on threads. Against float64 on those operands: (k + 2) 2^-24 of the sum of magnitudes; operands and
// sums below the smallest normal float32 may count as zero.
struct HalfLinearParams {
  float* out = nullptr;               // [num_rows, n], n the sum over parts
  const float* x = nullptr;           // [num_rows, k]
  const HalfWeight* parts = nullptr;  // [num_parts], all of the same k
  const float* bias = nullptr;        // [n] or null
  int32_t num_parts = 0;
  int32_t num_rows = 0;
  int32_t n = 0;
  int32_t k = 0;
};
using HalfLinearFn = void (*)(const HalfLinearParams&, const OpContext&);

// out[t, :] = row ids[t] of a matrix of 16-bit floats, as float32.
struct HalfEmbeddingParams {
  float* out = nullptr;          // [num_tokens, table.k]
  HalfWeight table;              // table.n is the vocabulary
  const int32_t* ids = nullptr;  // [num_tokens], each in [0, vocab)
  int32_t num_tokens = 0;
};
using HalfEmbeddingFn = void (*)(const HalfEmbeddingParams&, const OpContext&);

}  // namespace fastllm::ops
