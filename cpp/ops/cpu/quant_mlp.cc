// A gated MLP over quantised weights in one region: rows of x to 8 bits, gate and up side by side with SiLU-mul and the
// rounding of its result, then down. Neither the [rows, 2 inter] product nor its result is ever written as floats.
#include "ops/cpu/quant_mlp.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "ops/cpu/quant_rows.h"
#include "ops/cpu/wide_linear.h"

namespace fastllm::ops::cpu {
namespace {

QuantLinearParams Product(const QuantWeight* weight, int32_t rows) {
  QuantLinearParams p;
  p.parts = weight;
  p.num_parts = 1;
  p.num_rows = rows;
  p.n = weight->n;
  p.k = weight->k;
  return p;
}

// Blocks [share.begin, share.end) of the gated product, as many rows at a time as stay near.
void GatedBlocks(const QuantKernels& kernels, QuantGatedJob job, int32_t num_rows, Share share) {
  if (share.begin >= share.end) return;
  job.block_begin = static_cast<int32_t>(share.begin);
  job.block_end = static_cast<int32_t>(share.end);
  const int32_t at_once = RowsAtOnce(job.gate->k);
  for (int32_t row = 0; row < num_rows; row += at_once) {
    job.row_begin = row;
    job.row_end = std::min(num_rows, row + at_once);
    kernels.gated(job);
  }
}

}  // namespace

void RunQuantMlpExact(const QuantKernels& kernels, const QuantMlpParams& p, const OpContext& ctx) {
  thread_local std::vector<std::byte> buffer, gated_buffer;
  if (p.num_rows <= 0) return;
  CheckMlp(p);
  const int32_t hidden = p.gate->k, inter = p.gate->n;
  const QuantRows rows = LayRows(Product(p.gate, p.num_rows), buffer);
  QuantLinearParams down = Product(p.down, p.num_rows);
  down.out = p.out;
  down.bias = p.bias;
  const QuantRows gated = LayRows(down, gated_buffer);
  const QuantGatedJob job = {&rows, p.gate, p.up, &gated, 0, 0, 0, 0};
  const int64_t blocks = inter / kQuantBlock;
  // A single row is rounded before the region.
  const bool together = p.num_rows > 1;
  if (!together) QuantizeRows(kernels, p.x, rows, {0, p.num_rows});
  const int64_t work = QuantizeWork(p.num_rows, hidden) + ProductWork(p.num_rows, 2 * int64_t{inter}, hidden) +
                       ProductWork(p.num_rows, p.down->n, inter);
  Team::OfThisThread().Run(TeamSize(blocks, work, ctx.num_threads), work, [&](const Team::Member& member) {
    if (together) {
      QuantizeRows(kernels, p.x, rows, ShareOfRows(p.num_rows, member.index(), member.count()));
      member.Barrier();
    }
    GatedBlocks(kernels, job, p.num_rows, ShareOf(blocks, member.index(), member.count()));
    member.Barrier();
    MultiplyPanels(kernels, down, gated, ShareOf(NumPanels(p.down->n), member.index(), member.count()));
  });
}

}  // namespace fastllm::ops::cpu
