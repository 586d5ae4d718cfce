// Linear over 16-bit weights: rows of x to bfloat16, a barrier, then panels of the weight against all rows.
#include "ops/cpu/half_linear.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "ops/cpu/half.h"
#include "ops/cpu/parallel.h"

namespace fastllm::ops::cpu {
namespace {

constexpr int64_t kRowBlockBytes = 384 << 10;   // rounded rows that stay in a core's L2 while the weight passes by
constexpr int64_t kRowStep = 3 * kHalfRowTile;  // rows of a block come in these
constexpr int64_t kLine = 64;

// Nanoseconds of one core: rounding, and the larger of 100 G products a second and 16 bytes a nanosecond.
int64_t RoundWork(const HalfLinearParams& p) { return int64_t{p.num_rows} * p.k / 8; }
int64_t ProductWork(const HalfLinearParams& p) {
  const int64_t elements = int64_t{p.n} * p.k;
  return std::max(elements * p.num_rows / 100, elements / 8);
}

void Check(const HalfLinearParams& p) {
  int64_t n = 0;
  for (int32_t i = 0; i < p.num_parts; ++i) {
    FASTLLM_CHECK(p.parts[i].k == p.k, "half_linear: part " + std::to_string(i) + " has k " +
                                           std::to_string(p.parts[i].k) + ", the rows have " + std::to_string(p.k));
    FASTLLM_CHECK(p.parts[i].dtype != DType::kF32, "half_linear: part " + std::to_string(i) + " is float32");
    n += p.parts[i].n;
  }
  FASTLLM_CHECK(n == p.n, "half_linear: parts of " + std::to_string(n) + " rows for n " + std::to_string(p.n));
}

bool AnyBFloat(const HalfLinearParams& p) {
  return std::any_of(p.parts, p.parts + p.num_parts, [](const HalfWeight& w) { return w.dtype == DType::kBF16; });
}

// Memory for the rounded rows, which one calling thread keeps.
uint16_t* RoundedRows(const HalfLinearParams& p) {
  thread_local std::vector<std::byte> buffer;
  const int64_t rows = (int64_t{p.num_rows} + kHalfRowTile - 1) / kHalfRowTile * kHalfRowTile;
  const auto bytes = static_cast<size_t>(rows * HalfPaddedK(p.k) * 2 + kLine);
  if (buffer.size() < bytes) buffer.resize(bytes);
  const uintptr_t at = (reinterpret_cast<uintptr_t>(buffer.data()) + kLine - 1) / kLine * kLine;
  return reinterpret_cast<uint16_t*>(at);
}

void RoundRows(const HalfKernels& kernels, const HalfLinearParams& p, uint16_t* rows, Share share) {
  const int64_t padded = HalfPaddedK(p.k);
  for (int64_t r = share.begin; r < share.end; ++r) kernels.round(p.x + r * p.k, p.k, padded, rows + r * padded);
}

// Panels [share.begin, share.end) of all parts, counted one part after the other.
void MultiplyPanels(const HalfKernels& kernels, const HalfLinearParams& p, const uint16_t* rounded, Share share) {
  const int64_t fit = kRowBlockBytes / (HalfPaddedK(p.k) * 2) / kRowStep * kRowStep;
  const auto block = static_cast<int32_t>(std::max(kRowStep, fit));
  for (int32_t row = 0; row < p.num_rows; row += block) {
    int64_t first = 0, column = 0;
    for (int32_t i = 0; i < p.num_parts; ++i) {
      const HalfWeight& w = p.parts[i];
      const bool bfloat = w.dtype == DType::kBF16;
      const int64_t panels = HalfPanels(w.n);
      HalfPanelJob job;
      job.weight = &w;
      job.x = bfloat ? static_cast<const void*>(rounded) : p.x;
      job.x_stride = bfloat ? HalfPaddedK(p.k) : p.k;
      job.out = p.out + column;
      job.bias = p.bias == nullptr ? nullptr : p.bias + column;
      job.out_stride = p.n;
      job.row_begin = row;
      job.row_end = std::min(p.num_rows, row + block);
      job.panel_begin = static_cast<int32_t>(std::clamp<int64_t>(share.begin - first, 0, panels));
      job.panel_end = static_cast<int32_t>(std::clamp<int64_t>(share.end - first, 0, panels));
      if (job.panel_begin < job.panel_end) (bfloat ? kernels.bfloat : kernels.half)(job);
      first += panels;
      column += w.n;
    }
  }
}

}  // namespace

void RunHalfLinear(const HalfKernels& kernels, const HalfLinearParams& p, const OpContext& ctx) {
  if (p.num_rows <= 0 || p.n <= 0) return;
  Check(p);
  int64_t panels = 0;
  for (int32_t i = 0; i < p.num_parts; ++i) panels += HalfPanels(p.parts[i].n);
  const bool rounds = AnyBFloat(p);
  uint16_t* const rounded = rounds ? RoundedRows(p) : nullptr;
  // A single row is rounded before the region, which then needs no barrier.
  const bool together = rounds && p.num_rows > 1;
  if (rounds && !together) RoundRows(kernels, p, rounded, {0, p.num_rows});
  const int64_t work = ProductWork(p) + RoundWork(p);
  Team::OfThisThread().Run(TeamSize(panels, work, ctx.num_threads), work, [&](const Team::Member& member) {
    if (together) {
      RoundRows(kernels, p, rounded, ShareOf(p.num_rows, member.index(), member.count()));
      member.Barrier();
    }
    MultiplyPanels(kernels, p, rounded, ShareOf(panels, member.index(), member.count()));
  });
}

void HalfEmbedding(const HalfEmbeddingParams& p, const OpContext& ctx) {
  const HalfWeight& table = p.table;
  for (int32_t t = 0; t < p.num_tokens; ++t) {
    FASTLLM_CHECK(p.ids[t] >= 0 && p.ids[t] < table.n, "half_embedding: id " + std::to_string(p.ids[t]) + " of token " +
                                                           std::to_string(t) + " is outside the vocabulary of " +
                                                           std::to_string(table.n));
  }
  const bool bfloat = table.dtype == DType::kBF16;
  ParallelRanges(p.num_tokens, int64_t{p.num_tokens} * table.k, ctx.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const uint16_t* panel = table.data + p.ids[t] / kHalfPanel * HalfPanelValues(table.k);
      const int64_t lane = p.ids[t] % kHalfPanel;
      float* out = p.out + t * table.k;
      for (int64_t i = 0; i < table.k; ++i) {
        if (bfloat) {
          out[i] = std::bit_cast<float>(static_cast<uint32_t>(panel[(i / 2 * kHalfPanel + lane) * 2 + i % 2]) << 16);
        } else {
          out[i] = HalfToFloat(panel[i * kHalfPanel + lane]);
        }
      }
    }
  });
}

}  // namespace fastllm::ops::cpu
