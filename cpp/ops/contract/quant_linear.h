#pragma once

#include "ops/contract/quant_weight.h"

namespace fastllm::ops {

// out[t, :] = xq[t, :] W^T + bias, where the rows of W are those of `parts` one after the other, and xq is x rounded to
// 8 bits: each x_group values of a row become round-to-even(x * (127 / amax)) times amax / 127. Products of a group (of
// 16 values where x or the weight has such) are summed in integers, exactly; 32 values after the other in order of k,
// by
//   acc = fma(f, d * scale_x, acc)                               f the sum as a float
//   acc = fma(fma(f1, scale_x1, f0 * scale_x0), d, acc)          x_group 16
//   acc = fma(f0, d0 * scale_x0, acc), then fma(f1, d1 * scale_x1, acc)   weights with groups of 16
// and then, with a minimum,  acc = fma(m, s, acc),  s being scale_x times the sum of xq, or with x_group 16 the sum of
// two such products.
// So an element's bits depend on its row of x and of W alone: not on the rows beside it, threads or the arm.
//
// Without batch_invariant an arm may take calls of kWideRows rows and more another way (AMX does): x and the values of
// the weight are rounded to bfloat16, those of the weight with ties either way and after an error of at most 2^-19 of
// the largest of their block, and sums are float32. The bits then depend on the row of x and of W and on the arm, and
// on whether there are so many rows.
//
// A NaN or infinity in a row of x makes that row of out NaN or infinite and no other.
inline constexpr int32_t kWideRows = 12;
struct QuantLinearParams {
  float* out = nullptr;                // [num_rows, n], n the sum over parts
  const float* x = nullptr;            // [num_rows, k]
  const QuantWeight* parts = nullptr;  // [num_parts], all of the same k
  const float* bias = nullptr;         // [n] or null
  int32_t num_parts = 0;
  int32_t num_rows = 0;
  int32_t n = 0;
  int32_t k = 0;
  int32_t x_group = 32;  // 32, or 16: a third less error
  bool batch_invariant = true;
};
using QuantLinearFn = void (*)(const QuantLinearParams&, const OpContext&);

// out = (silu(x gate^T) * (x up^T)) down^T + bias; gate and up are of one size and format. Two ops, each optional:
// - quant_mlp as quant_linear without batch_invariant computes it; the result of the product in brackets is rounded to
//   bfloat16. An arm that computes in 8 bits alone has none.
// - quant_mlp_exact has the bits of quant_linear (x_group 32), silu_mul and quant_linear one after the other.
struct QuantMlpParams {
  float* out = nullptr;               // [num_rows, down->n]; may be x
  const float* x = nullptr;           // [num_rows, gate->k]
  const QuantWeight* gate = nullptr;  // [inter, hidden], inter a multiple of kQuantBlock
  const QuantWeight* up = nullptr;
  const QuantWeight* down = nullptr;  // [n, inter]
  const float* bias = nullptr;        // [n] or null
  int32_t num_rows = 0;
};
using QuantMlpFn = void (*)(const QuantMlpParams&, const OpContext&);

// tokens[r] = the column of the largest element in row r of x weight^T, of the bits that quant_linear with
// batch_invariant has, as `sample` picks it for a greedy row: ties go to the lowest, -1 for a row that holds a NaN or
// no finite value. Optional; the product itself is not kept.
struct QuantPickParams {
  int32_t* tokens = nullptr;            // [num_rows]
  const float* x = nullptr;             // [num_rows, k]
  const QuantWeight* weight = nullptr;  // [n, k]
  int32_t num_rows = 0;
  int32_t n = 0;
  int32_t k = 0;
};
using QuantPickFn = void (*)(const QuantPickParams&, const OpContext&);

// out[t, :] = row ids[t] - first_id of a packed matrix, as floats; zeros for an id whose row it lacks (see
// embedding.h).
struct QuantEmbeddingParams {
  float* out = nullptr;          // [num_tokens, table.k]
  QuantWeight table;             // table.n is the vocabulary, or a part of it
  const int32_t* ids = nullptr;  // [num_tokens], each in [0, num_ids), or [0, table.n) where num_ids is 0
  int32_t num_tokens = 0;
  int32_t first_id = 0;
  int32_t num_ids = 0;
};
using QuantEmbeddingFn = void (*)(const QuantEmbeddingParams&, const OpContext&);

}  // namespace fastllm::ops
