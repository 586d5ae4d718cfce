// Matrices in 8-bit floats on the CPU: the oracle of the GPU's. The linear decodes rows, exactly, and multiplies in
// float32 with the arm's own kernel.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/drive.h"
#include "ops/cpu/fp8.h"
#include "ops/cpu/parallel.h"

namespace fastllm::ops::cpu {
namespace {

constexpr float kLeastMax = 1e-30f;

void Decode(const uint8_t* q, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = Fp8ToFloat(q[i]);
}

// Rows of the weight [first, first + count), decoded in `panel`, times all decoded rows of x.
void MultiplyPanel(const Kernels& kernels, const Fp8LinearParams& p, const float* x, int32_t first, int32_t count,
                   float* panel, float* sums) {
  Decode(p.weight.q + int64_t{first} * p.k, int64_t{count} * p.k, panel);
  kernels.linear({sums, x, panel, nullptr, p.num_rows, count, p.k}, 0, p.num_rows, 0, count);
  const auto* bias = static_cast<const float*>(p.bias);
  auto* out = static_cast<float*>(p.out);
  for (int64_t t = 0; t < p.num_rows; ++t) {
    for (int32_t i = 0; i < count; ++i) {
      const float value = sums[t * count + i] * p.x.scale[t] * p.weight.scale[first + i];
      out[t * p.n + first + i] = bias == nullptr ? value : value + bias[first + i];
    }
  }
}

}  // namespace

void QuantizeFp8(const QuantizeFp8Params& p, const OpContext& ctx) {
  const auto* x = static_cast<const float*>(p.x);
  ParallelRanges(p.num_rows, int64_t{p.num_rows} * p.k * 2, ctx.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* row = x + t * p.k;
      float amax = 0.0f;
      for (int32_t i = 0; i < p.k; ++i) amax = std::fmax(amax, std::fabs(row[i]));
      const float scale = std::fmax(amax, kLeastMax) * (1.0f / kFp8Max);
      const float inverse = 1.0f / scale;
      for (int32_t i = 0; i < p.k; ++i) p.out.q[t * p.k + i] = FloatToFp8(row[i] * inverse);
      p.out.scale[t] = scale;
    }
  });
}

void RunFp8Linear(const Kernels& kernels, const Fp8LinearParams& p, const OpContext& ctx) {
  thread_local std::vector<float> rows, scratch;
  if (p.num_rows <= 0 || p.n <= 0) return;
  rows.resize(static_cast<size_t>(p.num_rows) * p.k);
  Decode(p.x.q, int64_t{p.num_rows} * p.k, rows.data());
  const int64_t panels = (p.n + kLinearPanel - 1) / kLinearPanel;
  const int64_t elements = int64_t{p.n} * p.k;
  const int64_t work = elements + elements * p.num_rows / 32;
  const int32_t team = TeamSize(panels, work, ctx.num_threads);
  const int64_t floats = int64_t{kLinearPanel} * (p.k + p.num_rows);
  scratch.resize(static_cast<size_t>(floats * team));
  const float* const x = rows.data();
  float* const all = scratch.data();
  ParallelItems(panels, work, team, [&](int64_t panel, int32_t thread) {
    const auto first = static_cast<int32_t>(panel * kLinearPanel);
    float* const mine = all + floats * thread;
    MultiplyPanel(kernels, p, x, first, std::min(kLinearPanel, p.n - first), mine, mine + int64_t{kLinearPanel} * p.k);
  });
}

}  // namespace fastllm::ops::cpu
