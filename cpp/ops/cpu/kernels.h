// The seam between the baseline code (threads, memory, selection) and the code that is built once per instruction
// set. Nothing here is inline and nothing includes a std header with inline functions: code built for AVX-512 must
// leave no symbol behind that the linker could take for the baseline's.
#pragma once

#include <cstdint>

#include "ops/contract/attention.h"
#include "ops/contract/linear.h"
#include "ops/contract/rms_norm.h"
#include "ops/contract/rope.h"
#include "ops/contract/silu_mul.h"

namespace fastllm::ops::cpu {

// Attention walks the positions in chunks that start at multiples of this, whatever the batch: each query row then
// sees one fixed order of arithmetic.
inline constexpr int32_t kAttentionChunk = 64;
// Positions are also taken in splits that start at multiples of this. Each split has sums of its own, and the splits of
// a row are joined in order, so that they may be computed at the same time without a change of a bit.
inline constexpr int32_t kAttentionSplit = 4 * kAttentionChunk;
inline constexpr int32_t kCacheLine = 64;
// head_dim is padded to a multiple of this in scratch.
inline constexpr int32_t kAttentionPad = 16;

// Floats of scratch that a chunk of a 16-bit cache takes, for `rows` query rows and head_dim padded to `stride`: K and
// V as float32, or rearranged together with queries and weights of 16 bits.
static constexpr int64_t WideFloats(int64_t rows, int64_t stride) {
  return 2 * kAttentionChunk * stride + (rows * (stride + kAttentionChunk) / 2 + 15) / 16 * 16;
}

// Rows of the weight that one call of the linear kernel takes at most.
inline constexpr int32_t kLinearPanel = 16;

// One piece of attention work: `num_tokens` query tokens of sequence `seq` from its row `first_token`, all query
// heads of one KV head.
struct AttentionItem {
  int32_t seq;
  int32_t kv_head;
  int32_t first_token;
  int32_t num_tokens;
};

// The first position that the row at `pos` sees.
static constexpr int32_t FirstSeen(int32_t window, int32_t pos) {
  return window > 0 && pos >= window ? pos - window + 1 : 0;
}
// The split that an item's work begins with: that of the first position that its first row sees.
static constexpr int32_t FirstSplit(const PagedAttentionParams& p, const AttentionItem& item) {
  const int32_t query_len = p.query_start[item.seq + 1] - p.query_start[item.seq];
  return FirstSeen(p.window, p.seq_len[item.seq] - query_len + item.first_token) / kAttentionSplit;
}

// The largest element and where it is first found. index is -1 when n is 0 or all are -inf.
struct MaxResult {
  float value;
  int32_t index;
  bool has_nan;  // value and index mean nothing then
};

// The maxima of blocks of this many logits let later passes skip most of a row.
inline constexpr int64_t kMaxBlock = 256;

struct Moments {
  double sum;         // of x - center
  double sum_square;  // of (x - center)^2
  int64_t count;
};

struct AttentionKernels {
  // With R rows (tokens x heads) and the stride S (head_dim padded), scratch holds R (3 S + kAttentionChunk + 4) floats
  // and WideFloats(R, S), and sums R (S + 2): accumulators [R, S], maxima [R], sums of weights [R]. Both are 64-byte
  // aligned.
  // `next` is what the thread most likely does next, or null: its first positions are asked for meanwhile.
  void (*attention)(const PagedAttentionParams& p, const AttentionItem& item, const AttentionItem* next,
                    float* scratch);
  // The sums of one split of the positions.
  void (*attention_split)(const PagedAttentionParams& p, const AttentionItem& item, int32_t split, float* scratch,
                          float* sums);
  // The output from the sums of all splits, sums + i * sums_stride being those of split FirstSplit() + i. They are
  // overwritten.
  void (*attention_join)(const PagedAttentionParams& p, const AttentionItem& item, float* sums, int64_t sums_stride);
};

// Row kernels work on tokens [begin, end). Float32 throughout; sampling kernels work on one row of logits.
struct Kernels {
  void (*rms_norm)(const RmsNormParams& p, int64_t begin, int64_t end);
  void (*rope)(const RopeParams& p, int64_t begin, int64_t end);
  void (*silu_mul)(const SiluMulParams& p, int64_t begin, int64_t end);
  // out rows [row_begin, row_end) for weight rows [n_begin, n_end), at most kLinearPanel of them.
  void (*linear)(const LinearParams& p, int32_t row_begin, int32_t row_end, int32_t n_begin, int32_t n_end);
  // x[0, n) rounded to nearest even and stored as `to`.
  void (*narrow)(const float* x, int64_t n, DType to, void* out);
  AttentionKernels attention;

  // block_max takes the maxima of each kMaxBlock elements (-inf for a block of NaN); n / kMaxBlock of them, rounded up.
  MaxResult (*max)(const float* x, int64_t n, float* block_max);
  // w[i] = exp((x[i] - max) * inv_t)
  void (*exp_scaled)(const float* x, int64_t n, float max, float inv_t, float* w);
  // Sum of exp((x[i] - max) * inv_t) for x <= max < inf. inv_t counts to more than float32; sums are float64 from
  // kMaxBlock elements up.
  double (*exp_sum)(const float* x, int64_t n, float max, double inv_t);
  // Values >= threshold and base + their indices, in order; returns the count. Both outputs hold n elements.
  int64_t (*gather)(const float* x, int64_t n, float threshold, int32_t base, float* values, int32_t* ids);
  // How many are > threshold.
  int64_t (*count_above)(const float* x, int64_t n, float threshold);
  // Of the elements above -inf, about center.
  Moments (*moments)(const float* x, int64_t n, float center);
  // x[i] = -inf where bit i % 32 of words[i / 32] is 0.
  void (*mask_bits)(float* x, int64_t n, const int32_t* words);
};

extern const Kernels kPlainKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const AttentionKernels kAvx512Bf16AttentionKernels;  // for a bfloat16 cache

}  // namespace fastllm::ops::cpu
