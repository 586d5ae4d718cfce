#include <algorithm>

#include "ops/cpu/drive.h"
#include "ops/cpu/parallel.h"

namespace fastllm::ops::cpu {
namespace {

constexpr int64_t kRowBlockBytes = 256 << 10;  // rows of x that stay in a core's L2 while the weight passes by

}  // namespace

// A thread owns a range of weight rows, so that each core reads its share of the weight from memory once per block of
// rows and writes lines of its own.
void RunLinear(const Kernels& k, const LinearParams& p, const OpContext& ctx) {
  if (p.num_rows <= 0 || p.n <= 0) return;
  const int64_t panels = (p.n + kLinearPanel - 1) / kLinearPanel;
  const int64_t row_bytes = std::max<int64_t>(1, static_cast<int64_t>(p.k) * 4);
  const auto block = static_cast<int32_t>(std::max<int64_t>(16, kRowBlockBytes / row_bytes / 4 * 4));
  // The larger of arithmetic at about 64 GFLOP/s and reading the weight at about 16 GB/s.
  const int64_t weight_elements = static_cast<int64_t>(p.n) * p.k;
  const int64_t work = std::max(weight_elements * p.num_rows / 32, weight_elements / 4);
  ParallelRanges(panels, work, ctx.num_threads, [&](int64_t begin, int64_t end) {
    for (int32_t row = 0; row < p.num_rows; row += block) {
      const int32_t row_end = std::min(p.num_rows, row + block);
      for (int64_t panel = begin; panel < end; ++panel) {
        const auto n = static_cast<int32_t>(panel * kLinearPanel);
        k.linear(p, row, row_end, n, std::min(p.n, n + kLinearPanel));
      }
    }
  });
}

}  // namespace fastllm::ops::cpu
