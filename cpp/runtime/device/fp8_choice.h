// Who computes a product of 8-bit floats on CUDA: rules from measurements on an H200 (bench/RESULTS.md, "8-bit
// floats").
#pragma once

#include <cstdint>

namespace fastllm::runtime {

enum class Fp8Kernel {
  kStream,  // of our own, for few rows
  kDense,   // for more, in bfloat16 alone
  kCublas,
};

inline constexpr int32_t kFp8StreamRows = 128, kFp8DenseRows = 256;

// dense: whether there is the kernel for more rows. A wide result is its already where there is little to stream beside
// the weight.
inline Fp8Kernel ChooseFp8Kernel(int32_t rows, int32_t n, int32_t k, bool dense) {
  if (dense && rows > 64 && rows <= kFp8StreamRows && n >= 4 * k) return Fp8Kernel::kDense;
  if (rows <= kFp8StreamRows) return Fp8Kernel::kStream;
  return dense && rows <= kFp8DenseRows ? Fp8Kernel::kDense : Fp8Kernel::kCublas;
}

}  // namespace fastllm::runtime
