// Quantised linear: rows of x to 8 bits, a barrier, then panels of the weight against all rows.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "ops/cpu/drive.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/quant_rows.h"
#include "ops/cpu/wide_linear.h"

namespace fastllm::ops::cpu {
namespace {

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

}  // namespace

void RunQuantLinear(const QuantKernels& kernels, const QuantLinearParams& p, const OpContext& ctx) {
  thread_local std::vector<std::byte> buffer;
  if (p.num_rows <= 0 || p.n <= 0) return;
  Check(p);
  if (!p.batch_invariant && kernels.wide != nullptr && p.num_rows >= kWideRows) {
    return RunWideLinear(*kernels.wide, p, ctx);
  }
  const QuantRows rows = LayRows(p, buffer);
  int64_t panels = 0;
  for (int32_t i = 0; i < p.num_parts; ++i) panels += NumPanels(p.parts[i].n);
  // A single row is quantised before the region, which then needs no barrier.
  const bool together = p.num_rows > 1;
  if (!together) QuantizeRows(kernels, p.x, rows, {0, p.num_rows});
  const int64_t work = ProductWork(p.num_rows, p.n, p.k) + QuantizeWork(p.num_rows, p.k);
  Team::OfThisThread().Run(TeamSize(panels, work, ctx.num_threads), work, [&](const Team::Member& member) {
    if (together) {
      QuantizeRows(kernels, p.x, rows, ShareOfRows(p.num_rows, member.index(), member.count()));
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
