// Quantised linear: rows of x to 8 bits, a barrier, then panels of the weight against all rows.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "ops/cpu/drive.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/quant_kernels.h"
#include "ops/cpu/wide_linear.h"

namespace fastllm::ops::cpu {
namespace {

constexpr int64_t kRowBlockBytes = 384 << 10;  // quantised rows that stay in a core's L2 while the weight passes by
constexpr int64_t kLine = 64;

// Nanoseconds of one core: quantising, and the larger of 300 G products a second and 16 bytes a nanosecond.
int64_t QuantizeWork(const QuantLinearParams& p) { return int64_t{p.num_rows} * p.k / 4; }
int64_t ProductWork(const QuantLinearParams& p) {
  const int64_t elements = int64_t{p.n} * p.k;
  return std::max(elements * p.num_rows / 150, elements / 24);
}

uint32_t PlanesOf(QuantFormat f) {
  const QuantTraits t = TraitsOf(f);
  switch (t.offset) {
    case 8: return kPlaneShift8;
    case 16: return kPlaneShift16;
    case 128: return kPlaneShift128;
    case 32: return kPlaneShift32Halves;
    default: return kPlaneSum;
  }
}

void Check(const QuantLinearParams& p) {
  int64_t n = 0;
  for (int32_t i = 0; i < p.num_parts; ++i) {
    FASTLLM_CHECK(p.parts[i].k == p.k, "quant_linear: part " + std::to_string(i) + " has k " +
                                           std::to_string(p.parts[i].k) + ", the rows have " + std::to_string(p.k));
    n += p.parts[i].n;
  }
  FASTLLM_CHECK(p.x_group == 32 || p.x_group == 16, "quant_linear: x_group " + std::to_string(p.x_group));
  FASTLLM_CHECK(n == p.n && p.k % kQuantBlock == 0, "quant_linear: parts of " + std::to_string(n) + " rows for n " +
                                                        std::to_string(p.n) + ", k " + std::to_string(p.k));
}

// Cuts planes off a buffer that one calling thread keeps.
class Planes {
 public:
  explicit Planes(std::vector<std::byte>& buffer) : buffer_(buffer) {}

  QuantRows Lay(const QuantLinearParams& p) {
    uint32_t planes = 0;
    for (int32_t i = 0; i < p.num_parts; ++i) planes |= PlanesOf(p.parts[i].format);
    const int64_t scales = int64_t{p.num_rows} * (p.k / kQuantBlock) * 4;
    const bool fine = p.x_group == 16;
    const int64_t halves = fine ? 2 * scales : scales;
    const int64_t most = int64_t{p.num_rows} * p.k + 11 * scales + 8 * kLine;
    if (buffer_.size() < static_cast<size_t>(most)) buffer_.resize(static_cast<size_t>(most));
    at_ = (reinterpret_cast<uintptr_t>(buffer_.data()) + kLine - 1) / kLine * kLine;
    const auto optional = [&](uint32_t plane, int64_t bytes) { return (planes & plane) != 0 ? Take(bytes) : nullptr; };
    QuantRows rows;
    rows.q = static_cast<int8_t*>(Take(int64_t{p.num_rows} * p.k));
    rows.scale = static_cast<float*>(Take(halves));
    rows.sum = static_cast<float*>(optional(kPlaneSum, scales));
    rows.shift8 = static_cast<int32_t*>(optional(kPlaneShift8, halves));
    rows.shift16 = static_cast<int32_t*>(optional(kPlaneShift16, halves));
    rows.shift128 = static_cast<int32_t*>(optional(kPlaneShift128, halves));
    rows.shift32 = static_cast<int32_t*>(optional(kPlaneShift32Halves, 2 * scales));
    rows.num_rows = p.num_rows;
    rows.k = p.k;
    rows.fine = fine;
    return rows;
  }

 private:
  void* Take(int64_t bytes) {
    void* p = reinterpret_cast<void*>(at_);
    at_ += static_cast<uintptr_t>((bytes + kLine - 1) / kLine * kLine);
    return p;
  }

  std::vector<std::byte>& buffer_;
  uintptr_t at_ = 0;
};

void QuantizeRows(const QuantKernels& kernels, const float* x, const QuantRows& rows, Share share) {
  for (int32_t tile = 0; tile < share.end;) {
    const int32_t count = TileRows(rows.num_rows - tile);
    for (int64_t row = std::max<int64_t>(tile, share.begin); row < std::min<int64_t>(tile + count, share.end); ++row) {
      kernels.quantize(x, rows, tile, count, static_cast<int32_t>(row));
    }
    tile += count;
  }
}

// Panels [share.begin, share.end) of all parts, counted one part after the other.
void MultiplyPanels(const QuantKernels& kernels, const QuantLinearParams& p, const QuantRows& rows, Share share) {
  const auto block = static_cast<int32_t>(std::max<int64_t>(1, kRowBlockBytes / p.k / kQuantTileRows) * kQuantTileRows);
  for (int32_t row = 0; row < p.num_rows; row += block) {
    int64_t first = 0, column = 0;
    for (int32_t i = 0; i < p.num_parts; ++i) {
      const QuantWeight& w = p.parts[i];
      const int64_t panels = NumPanels(w.n);
      QuantPanelJob job;
      job.rows = &rows;
      job.weight = &w;
      job.layout = PanelLayoutOf(w.format, w.k);
      job.out = p.out + column;
      job.bias = p.bias == nullptr ? nullptr : p.bias + column;
      job.out_stride = p.n;
      job.row_begin = row;
      job.row_end = std::min(p.num_rows, row + block);
      job.panel_begin = static_cast<int32_t>(std::clamp<int64_t>(share.begin - first, 0, panels));
      job.panel_end = static_cast<int32_t>(std::clamp<int64_t>(share.end - first, 0, panels));
      if (job.panel_begin < job.panel_end) kernels.linear(job);
      first += panels;
      column += w.n;
    }
  }
}

}  // namespace

void RunQuantLinear(const QuantKernels& kernels, const QuantLinearParams& p, const OpContext& ctx) {
  thread_local std::vector<std::byte> buffer;
  if (p.num_rows <= 0 || p.n <= 0) return;
  Check(p);
  if (!p.batch_invariant && kernels.wide != nullptr && p.num_rows >= kWideRows) {
    return RunWideLinear(*kernels.wide, p, ctx);
  }
  const QuantRows rows = Planes(buffer).Lay(p);
  int64_t panels = 0;
  for (int32_t i = 0; i < p.num_parts; ++i) panels += NumPanels(p.parts[i].n);
  // A single row is quantised before the region, which then needs no barrier.
  const bool together = p.num_rows > 1;
  if (!together) QuantizeRows(kernels, p.x, rows, {0, p.num_rows});
  const int64_t work = ProductWork(p) + QuantizeWork(p);
  Team::OfThisThread().Run(TeamSize(panels, work, ctx.num_threads), work, [&](const Team::Member& member) {
    if (together) {
      QuantizeRows(kernels, p.x, rows, ShareOf(p.num_rows, member.index(), member.count()));
      member.Barrier();
    }
    MultiplyPanels(kernels, p, rows, ShareOf(panels, member.index(), member.count()));
  });
}

void QuantEmbedding(const QuantEmbeddingParams& p, const OpContext& ctx) {
  const QuantWeight& table = p.table;
  const int32_t num_ids = p.num_ids == 0 ? table.n : p.num_ids;
  for (int32_t t = 0; t < p.num_tokens; ++t) {
    FASTLLM_CHECK(p.ids[t] >= 0 && p.ids[t] < num_ids, "quant_embedding: id " + std::to_string(p.ids[t]) +
                                                           " of token " + std::to_string(t) +
                                                           " is outside the vocabulary of " + std::to_string(num_ids));
  }
  const int64_t work = int64_t{p.num_tokens} * table.k * 2;
  ParallelRanges(p.num_tokens, work, ctx.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int32_t row = p.ids[t] - p.first_id;
      float* const out = p.out + t * table.k;
      if (row >= 0 && row < table.n) {
        DequantizeRow(table, row, out);
      } else {
        std::fill_n(out, table.k, 0.0f);
      }
    }
  });
}

}  // namespace fastllm::ops::cpu
