// The products of a decoder layer with what stands around them folded in, so that a layer is five launches: norm_qkv,
// attention, linear_add, norm_linear (gate, up and SiLU-mul), linear_add. Optional: a backend has all three or none.
//
// The norm of h with gain g is shared between who writes h and who reads it. linear_add leaves h o g, rounded, and the
// sums of squares of h; the reader multiplies a row of its product by 1 / sqrt(mean(h^2) + eps):
//   rms_norm(h) W^T = ((h o g) W^T) / sqrt(mean(h^2) + eps)
#pragma once

#include "ops/contract/common.h"
#include "ops/contract/rope_kv_write.h"

namespace fastllm::ops {

// Most rows that the CUDA launchers take; the CPU arm has no limit.
inline constexpr int32_t kFusedRows = 8;

// Sums of squares are over this many neighbouring elements of a row each.
inline constexpr int32_t kSquareColumns = 16;
constexpr int32_t SquareParts(int32_t hidden) { return (hidden + kSquareColumns - 1) / kSquareColumns; }

// The input of a product. squares == nullptr: x is normalised already.
struct NormedRows {
  const void* x = nullptr;         // [num_rows, k]
  const float* squares = nullptr;  // [num_rows, SquareParts(k)]
  float eps = 1e-5f;
};

// The weight of the product that comes next: a hint, by which a backend may bring its first part nearer meanwhile.
struct NextWeight {
  const void* data = nullptr;
  int64_t bytes = 0;
};

// out = norm(x) W^T + bias. Gated: out = silu(norm(x) W1^T) * (norm(x) W2^T), W1 and W2 the halves of the weight; no
// bias. n is a multiple of 8, k of 32, pointers are 16-byte aligned.
struct NormLinearParams {
  void* out = nullptr;  // [num_rows, n]
  NormedRows in;
  const void* weight = nullptr;  // [n, k]; gated: [2 n, k]
  const void* bias = nullptr;    // [n] or null
  int32_t num_rows = 0;
  int32_t n = 0;
  int32_t k = 0;
  bool gated = false;
  NextWeight next;
};
using NormLinearFn = void (*)(const NormLinearParams&, const OpContext&);

// residual += x W^T + bias, in place and rounded once. With gain: scaled = residual o gain, and squares of the residual
// as stored. n is a multiple of 8, k of 32, pointers are 16-byte aligned.
struct LinearAddParams {
  void* residual = nullptr;      // [num_rows, n]
  const void* x = nullptr;       // [num_rows, k]
  const void* weight = nullptr;  // [n, k]
  const void* bias = nullptr;    // [n] or null
  const void* gain = nullptr;    // [n] or null: nothing but the residual is written
  void* scaled = nullptr;        // [num_rows, n]
  float* squares = nullptr;      // [num_rows, SquareParts(n)]
  int32_t num_rows = 0;
  int32_t n = 0;
  int32_t k = 0;
  NextWeight next;
};
using LinearAddFn = void (*)(const LinearAddParams&, const OpContext&);

// The rows of norm(x) W^T + bias are the heads of q, k and v; rope_kv_write of them: q goes to rope.q, k and v to the
// cache alone, which is of the type of x. rope.k and rope.v are unused, the heads have no norms, the whole head
// rotates, NeoX pairing; head_dim is a multiple of 16. The number of rows is rope.num_tokens.
struct NormQkvParams {
  NormedRows in;
  const void* weight = nullptr;  // [(num_q_heads + 2 num_kv_heads) head_dim, k]
  const void* bias = nullptr;    // by rows of the weight, or null
  int32_t k = 0;
  RopeKvWriteParams rope;
  NextWeight next;
};
using NormQkvFn = void (*)(const NormQkvParams&, const OpContext&);

}  // namespace fastllm::ops
