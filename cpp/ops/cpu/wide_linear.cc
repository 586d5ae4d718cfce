// Products of many rows in bfloat16: rows of x to bfloat16, a barrier, then panels of the weight against all rows.
#include "ops/cpu/wide_linear.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "ops/cpu/parallel.h"

namespace fastllm::ops::cpu {
namespace {

constexpr int64_t kRowBlockBytes = 1 << 20;  // rounded rows that stay in a core's L2 while the weight passes by
constexpr int64_t kRowStep = 2 * kWideTile;  // rows of a block come in these
constexpr uintptr_t kLine = 64;

// Nanoseconds of one core: rounding, and 22 for a block of the weight and 8 for its product with 16 rows.
int64_t RoundWork(int64_t rows, int64_t k) { return rows * k / 8; }
int64_t ProductWork(int64_t rows, int64_t n, int64_t k) {
  return n * k / 512 * (22 + 8 * ((rows + kWideTile - 1) / kWideTile));
}

// Memory of the calling thread for `values` values; what lies there is left over.
uint16_t* Values(std::vector<std::byte>& buffer, int64_t values) {
  const auto bytes = static_cast<size_t>(values) * 2 + kLine;
  if (buffer.size() < bytes) buffer.resize(bytes);
  return reinterpret_cast<uint16_t*>((reinterpret_cast<uintptr_t>(buffer.data()) + kLine - 1) / kLine * kLine);
}

void RoundRows(const WideKernels& kernels, const float* x, int64_t k, uint16_t* to, Share share) {
  for (int64_t row = share.begin; row < share.end; ++row) kernels.round(x + row * k, k, to + WideRow(row, k));
}

// This thread's share of `panels`, whole pairs: a pair is a line of a row of the output.
Share PairsOf(int64_t panels, const Team::Member& member) {
  const Share pairs = ShareOf((panels + 1) / 2, member.index(), member.count());
  return {2 * pairs.begin, std::min(2 * pairs.end, panels)};
}

// job's panels [begin, end) against all `rows`, as many of these at a time as stay near.
void AllRows(const WideKernels& kernels, WideJob job, int32_t rows, Share panels) {
  if (panels.begin >= panels.end) return;
  job.panel_begin = static_cast<int32_t>(panels.begin);
  job.panel_end = static_cast<int32_t>(panels.end);
  const auto block =
      static_cast<int32_t>(std::max<int64_t>(1, kRowBlockBytes / (2 * int64_t{job.weight->k}) / kRowStep) * kRowStep);
  for (int32_t row = 0; row < rows; row += block) {
    job.row_begin = row;
    job.row_end = std::min(rows, row + block);
    kernels.linear(job);
  }
}

// Panels `share` of all parts, counted one part after the other.
void MultiplyParts(const WideKernels& kernels, const QuantLinearParams& p, const uint16_t* x, Share share) {
  int64_t first = 0, column = 0;
  for (int32_t i = 0; i < p.num_parts; ++i) {
    const QuantWeight& w = p.parts[i];
    const int64_t panels = NumPanels(w.n);
    WideJob job = {};
    job.weight = &w;
    job.x = x;
    job.out = p.out + column;
    job.bias = p.bias == nullptr ? nullptr : p.bias + column;
    job.out_stride = p.n;
    AllRows(kernels, job, p.num_rows,
            {std::clamp<int64_t>(share.begin - first, 0, panels), std::clamp<int64_t>(share.end - first, 0, panels)});
    first += panels;
    column += w.n;
  }
}

}  // namespace

void CheckMlp(const QuantMlpParams& p) {
  const QuantWeight &gate = *p.gate, &up = *p.up, &down = *p.down;
  FASTLLM_CHECK(gate.k == up.k && gate.n == up.n && gate.format == up.format,
                "quant_mlp: gate and up are of different sizes or formats");
  FASTLLM_CHECK(down.k == gate.n && down.n > 0 && gate.k > 0 && gate.k % kQuantBlock == 0 && gate.n % kQuantBlock == 0,
                "quant_mlp: gate has " + std::to_string(gate.n) + " rows of " + std::to_string(gate.k) +
                    ", down takes " + std::to_string(down.k));
}

void RunWideLinear(const WideKernels& kernels, const QuantLinearParams& p, const OpContext& ctx) {
  thread_local std::vector<std::byte> buffer;
  uint16_t* const x = Values(buffer, WideValues(p.num_rows, p.k));
  int64_t panels = 0;
  for (int32_t i = 0; i < p.num_parts; ++i) panels += NumPanels(p.parts[i].n);
  const int64_t work = ProductWork(p.num_rows, p.n, p.k) + RoundWork(p.num_rows, p.k);
  Team::OfThisThread().Run(TeamSize((panels + 1) / 2, work, ctx.num_threads), work, [&](const Team::Member& member) {
    RoundRows(kernels, p.x, p.k, x, ShareOf(p.num_rows, member.index(), member.count()));
    member.Barrier();
    MultiplyParts(kernels, p, x, PairsOf(panels, member));
  });
}

void RunQuantMlp(const WideKernels& kernels, const QuantMlpParams& p, const OpContext& ctx) {
  thread_local std::vector<std::byte> buffer;
  if (p.num_rows <= 0) return;
  CheckMlp(p);
  const int32_t hidden = p.gate->k, inter = p.gate->n;
  uint16_t* const x = Values(buffer, WideValues(p.num_rows, hidden) + WideValues(p.num_rows, inter));
  uint16_t* const gated = x + WideValues(p.num_rows, hidden);
  WideJob first = {};
  first.weight = p.gate;
  first.up = p.up;
  first.x = x;
  first.gated = gated;
  WideJob second = {};
  second.weight = p.down;
  second.x = gated;
  second.out = p.out;
  second.bias = p.bias;
  second.out_stride = p.down->n;
  const int64_t work = RoundWork(p.num_rows, hidden) + ProductWork(p.num_rows, 2 * int64_t{inter}, hidden) +
                       ProductWork(p.num_rows, p.down->n, inter);
  const int64_t pairs = (NumPanels(p.down->n) + 1) / 2;
  Team::OfThisThread().Run(TeamSize(pairs, work, ctx.num_threads), work, [&](const Team::Member& member) {
    RoundRows(kernels, p.x, hidden, x, ShareOf(p.num_rows, member.index(), member.count()));
    member.Barrier();
    AllRows(kernels, first, p.num_rows, PairsOf(NumPanels(inter), member));
    member.Barrier();
    AllRows(kernels, second, p.num_rows, PairsOf(NumPanels(p.down->n), member));
  });
}

}  // namespace fastllm::ops::cpu
