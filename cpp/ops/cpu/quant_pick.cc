// Greedy tokens of an output head: a few columns of all rows at a time, looked through while they are in cache, so that
// the logits are never written to memory and read again.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "ops/cpu/drive.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/quant_rows.h"

namespace fastllm::ops::cpu {
namespace {

constexpr int32_t kSlabPanels = static_cast<int32_t>(kMaxBlock) / kQuantPanel;
constexpr float kInf = std::numeric_limits<float>::infinity();

// The largest logit that a thread has seen of a row.
struct Best {
  float value = -kInf;
  int32_t id = -1;
  bool has_nan = false;
  bool any_finite = false;
};

// What one calling thread keeps between calls.
struct Workspace {
  std::vector<std::byte> rows;
  std::vector<float> slabs;  // [threads, rows, kMaxBlock]
  std::vector<Best> best;    // [threads, rows]
};

// Columns from `first` on of one row, later ones than `best` has seen.
void LookThrough(const Kernels& kernels, const float* x, int32_t columns, int32_t first, Best& best) {
  float block_max = 0.0f;
  const MaxResult max = kernels.max(x, columns, &block_max);
  best.has_nan |= max.has_nan;
  if (max.has_nan || max.index < 0) return;
  if (max.value < kInf) {
    best.any_finite = true;
  } else if (!best.any_finite) {
    best.any_finite = std::any_of(x, x + columns, [](float v) { return std::isfinite(v); });
  }
  if (best.id >= 0 && !(max.value > best.value)) return;
  best.value = max.value;
  best.id = first + max.index;
}

// `count` panels from `panel` on against all rows; slab: [rows, kMaxBlock].
void PickSlab(const Kernels& kernels, const QuantKernels& quant, const QuantPickParams& p, const QuantRows& rows,
              int64_t panel, int64_t count, float* slab, Best* best) {
  const auto first = static_cast<int32_t>(panel * kQuantPanel);
  QuantWeight part = *p.weight;
  part.data += panel * PanelLayoutOf(part.format, part.k).panel_bytes;
  part.n = static_cast<int32_t>(std::min<int64_t>(p.n - first, count * kQuantPanel));
  QuantLinearParams product;
  product.out = slab;
  product.parts = &part;
  product.num_parts = 1;
  product.num_rows = p.num_rows;
  product.n = static_cast<int32_t>(kMaxBlock);
  product.k = p.k;
  MultiplyPanels(quant, product, rows, {0, count});
  for (int32_t r = 0; r < p.num_rows; ++r) LookThrough(kernels, slab + r * kMaxBlock, part.n, first, best[r]);
}

int32_t Token(const Best* best, int64_t stride, int32_t threads) {
  Best all;
  for (int32_t t = 0; t < threads; ++t) {
    const Best& part = best[t * stride];
    if (part.has_nan) return -1;
    all.any_finite |= part.any_finite;
    if (part.id >= 0 && (all.id < 0 || part.value > all.value)) all.value = part.value, all.id = part.id;
  }
  return all.any_finite ? all.id : -1;
}

}  // namespace

void RunQuantPick(const Kernels& kernels, const QuantKernels& quant, const QuantPickParams& p, const OpContext& ctx) {
  thread_local Workspace ws;
  if (p.num_rows <= 0) return;
  FASTLLM_CHECK(p.weight->n == p.n && p.weight->k == p.k && p.n > 0 && p.k % kQuantBlock == 0,
                "quant_pick: a weight of " + std::to_string(p.weight->n) + " x " + std::to_string(p.weight->k) +
                    " for n " + std::to_string(p.n) + ", k " + std::to_string(p.k));
  QuantLinearParams product;
  product.x = p.x;
  product.parts = p.weight;
  product.num_parts = 1;
  product.num_rows = p.num_rows;
  product.n = p.n;
  product.k = p.k;
  const QuantRows rows = LayRows(product, ws.rows);
  const int64_t panels = NumPanels(p.n);
  const int64_t work = ProductWork(p.num_rows, p.n, p.k) + QuantizeWork(p.num_rows, p.k);
  const int32_t team = TeamSize((panels + kSlabPanels - 1) / kSlabPanels, work, ctx.num_threads);
  const int64_t slab_floats = p.num_rows * kMaxBlock;
  ws.slabs.resize(static_cast<size_t>(team * slab_floats));
  ws.best.assign(static_cast<size_t>(team) * p.num_rows, {});
  float* const slabs = ws.slabs.data();
  Best* const best = ws.best.data();
  Team::OfThisThread().Run(team, work, [&](const Team::Member& member) {
    QuantizeRows(quant, p.x, rows, ShareOfRows(p.num_rows, member.index(), member.count()));
    member.Barrier();
    const Share share = ShareOf(panels, member.index(), member.count());
    for (int64_t panel = share.begin; panel < share.end; panel += kSlabPanels) {
      PickSlab(kernels, quant, p, rows, panel, std::min<int64_t>(kSlabPanels, share.end - panel),
               slabs + member.index() * slab_floats, best + static_cast<int64_t>(member.index()) * p.num_rows);
    }
  });
  for (int32_t r = 0; r < p.num_rows; ++r) p.tokens[r] = Token(best + r, p.num_rows, team);
}

}  // namespace fastllm::ops::cpu
