#include "runtime/comm/sum_ranks.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <array>

namespace fastllm::runtime {
namespace {

template <typename T>
void Sum(std::span<const void* const> inputs, std::span<void* const> outputs, int64_t begin, int64_t end) {
  constexpr int64_t kPiece = 512;
  std::array<float, kPiece> sum;
  for (int64_t at = begin; at < end; at += kPiece) {
    const int64_t n = std::min(kPiece, end - at);
    const T* first = static_cast<const T*>(inputs[0]) + at;
    for (int64_t i = 0; i < n; ++i) sum[i] = static_cast<float>(first[i]);
    for (size_t r = 1; r < inputs.size(); ++r) {
      const T* x = static_cast<const T*>(inputs[r]) + at;
      for (int64_t i = 0; i < n; ++i) sum[i] += static_cast<float>(x[i]);
    }
    for (void* output : outputs) {
      T* out = static_cast<T*>(output) + at;
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(sum[i]);
    }
  }
}

}  // namespace

void SumRanks(std::span<const void* const> inputs, std::span<void* const> outputs, int64_t begin, int64_t end,
              CommType type) {
  switch (type) {
    case CommType::kF32: return Sum<float>(inputs, outputs, begin, end);
    case CommType::kF16: return Sum<c10::Half>(inputs, outputs, begin, end);
    default: return Sum<c10::BFloat16>(inputs, outputs, begin, end);
  }
}

}  // namespace fastllm::runtime
