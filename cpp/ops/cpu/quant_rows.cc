#include "ops/cpu/quant_rows.h"

#include <algorithm>
#include <cstdint>

namespace fastllm::ops::cpu {
namespace {

constexpr int64_t kRowBlockBytes = 192 << 10;  // of RowsAtOnce
constexpr int64_t kLine = 64;

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

}  // namespace

QuantRows LayRows(const QuantLinearParams& p, std::vector<std::byte>& buffer) { return Planes(buffer).Lay(p); }

void QuantizeRows(const QuantKernels& kernels, const float* x, const QuantRows& rows, Share share) {
  for (int32_t tile = 0; tile < share.end;) {
    const int32_t count = TileRows(rows.num_rows - tile);
    if (count == kQuantTileRows && kernels.quantize_tile != nullptr && tile >= share.begin &&
        tile + count <= share.end) {
      kernels.quantize_tile(x, rows, tile);
    } else {
      for (int64_t row = std::max<int64_t>(tile, share.begin); row < std::min<int64_t>(tile + count, share.end);
           ++row) {
        kernels.quantize(x, rows, tile, count, static_cast<int32_t>(row));
      }
    }
    tile += count;
  }
}

Share ShareOfRows(int32_t rows, int32_t index, int32_t count) {
  const Share tiles = ShareOf((rows + kQuantTileRows - 1) / kQuantTileRows, index, count);
  return {std::min<int64_t>(rows, tiles.begin * kQuantTileRows), std::min<int64_t>(rows, tiles.end * kQuantTileRows)};
}

int32_t RowsAtOnce(int32_t k) {
  return static_cast<int32_t>(std::max<int64_t>(1, kRowBlockBytes / k / kQuantTileRows) * kQuantTileRows);
}

void MultiplyPanels(const QuantKernels& kernels, const QuantLinearParams& p, const QuantRows& rows, Share share) {
  const int32_t block = RowsAtOnce(p.k);
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

}  // namespace fastllm::ops::cpu
