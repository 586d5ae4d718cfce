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

// Whether it is faster than cuBLASLt: up to 128 rows where k is long and there are few tiles, in small products of up
// to 32 rows, and up to 64 in those of the sizes of qkv and o, which it begins before the kernel before is done.
// (Gated products: ops::GatesRows.)
inline bool IsDense(const LinearShape& s) {
  if (s.rows <= kSkinnyLimit || !FitsDense(s)) return false;
  if (s.rows <= 128 && s.n <= 8192 && s.k >= 2 * s.n) return true;
  if (s.rows <= 64 && s.n >= 4096 && s.n <= 8192 && s.k >= 4096) return true;
  return s.rows <= 32 && s.n <= 4096 && s.k <= 4096;
}

// Which of cuBLASLt's algorithms.
struct CublasChoice {
  int32_t ask = 0;     // rows to ask about; 0: those that stand for the product's (plan_rows.h)
  int32_t choice = 0;  // in its order for these
};

// Where the first of a size's own is not the best by 5 % and more. One line for each product that was measured
// (lt_sweep, gemm_bench), and nothing for others.
struct CublasRule {
  int32_t n;
  int32_t k;
  int32_t least_rows;
  int32_t most_rows;
  CublasChoice take;
};
inline constexpr CublasRule kCublasRules[] = {
    // down; 256 rows: 51 us, the first 57; 416: 77, 82; 576: 95, 101; 832: 130, 145
    {4096, 14336, 129, 256, {0, 1}},
    {4096, 14336, 385, 448, {512, 0}},
    {4096, 14336, 545, 608, {640, 0}},
    {4096, 14336, 801, 832, {864, 0}},
    // qkv; 320 rows: 29 us, the first 35; 864: 61, 69; 1088: 81, 88; 8192: 594, 627
    {6144, 4096, 289, 320, {320, 3}},
    {6144, 4096, 801, 864, {864, 2}},
    {6144, 4096, 1025, 1088, {1088, 1}},
    {6144, 4096, 8192, 8192, {0, 3}},
    // o; 288: 20.7, 22.2; 416: 25.8, 30.1; 832: 41.6, 45.4; 896: 43.4, 45.9; 1600: 80, 86; 8192: 412, 423
    {4096, 4096, 257, 288, {288, 1}},
    {4096, 4096, 385, 512, {512, 0}},
    {4096, 4096, 801, 832, {864, 0}},
    {4096, 4096, 865, 896, {896, 1}},
    {4096, 4096, 1537, 1600, {1600, 2}},
    {4096, 4096, 8192, 8192, {0, 5}},
    // gate_up; 448: 155, 274; 480: 156, 172; 544: 179, 192; 608: 195, 212; 768: 237, 251; 832: 271, 289
    {28672, 4096, 417, 480, {512, 0}},
    {28672, 4096, 513, 544, {544, 1}},
    {28672, 4096, 577, 640, {640, 1}},
    {28672, 4096, 673, 768, {768, 3}},
    {28672, 4096, 801, 896, {896, 3}},
};

inline CublasChoice ChooseCublas(const LinearShape& s) {
  for (const CublasRule& r : kCublasRules) {
    if (r.n == s.n && r.k == s.k && s.rows >= r.least_rows && s.rows <= r.most_rows) return r.take;
  }
  return {};
}

}  // namespace fastllm::runtime
