// Who computes a product on CUDA: rules from measurements on an H200 (bench/RESULTS.md, "Dense products").
#pragma once

#include <cstdint>

namespace fastllm::runtime {

struct LinearShape {
  int32_t rows = 0;
  int32_t n = 0;
  int32_t k = 0;
};

// Few rows read the weight at the speed of the memory in a kernel that cuBLAS does not have.
inline constexpr int32_t kSkinnyLimit = 16;

inline bool IsSkinny(const LinearShape& s) { return s.rows <= kSkinnyLimit && s.k % 32 == 0; }

// Whether dense_linear can take a product in bfloat16.
inline bool FitsDense(const LinearShape& s) { return s.n % 16 == 0 && s.k % 8 == 0; }

// Whether it is faster than cuBLASLt: up to 128 rows where k is long and there are few tiles, and in small products of
// up to 32 rows. (Gated products: ops::GatesRows.)
inline bool IsDense(const LinearShape& s) {
  if (s.rows <= kSkinnyLimit || !FitsDense(s)) return false;
  if (s.rows <= 128 && s.n <= 8192 && s.k >= 2 * s.n) return true;
  return s.rows <= 32 && s.n <= 4096 && s.k <= 4096;
}

// Which of cuBLASLt's algorithms, in its order, where the first is not the best of 16 by 5 % and more. One line for
// each product that was measured, and nothing for others.
struct CublasRule {
  int32_t n;
  int32_t k;
  int32_t least_rows;
  int32_t most_rows;
  int32_t choice;
};
inline constexpr CublasRule kCublasRules[] = {
    {4096, 14336, 129, 256, 1},   // down, 256 rows: 51 us, the first 57
    {6144, 4096, 8192, 8192, 3},  // qkv: 594 us, the first 627
    {4096, 4096, 8192, 8192, 5},  // o: 412 us, the first 423
};

inline int32_t CublasChoice(const LinearShape& s) {
  for (const CublasRule& r : kCublasRules) {
    if (r.n == s.n && r.k == s.k && s.rows >= r.least_rows && s.rows <= r.most_rows) return r.choice;
  }
  return 0;
}

}  // namespace fastllm::runtime
