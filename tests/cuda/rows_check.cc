#include <cmath>
#include <random>

#include "ops/contract/embedding.h"
#include "ops/contract/rms_norm.h"
#include "ops/contract/silu_mul.h"
#include "support.h"

namespace fastllm::cuda_check {
namespace {

std::vector<int32_t> RandomIds(int n, int vocab, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<int32_t> ids(n);
  for (auto& id : ids) id = static_cast<int32_t>(rng() % vocab);
  return ids;
}

std::string Label(const char* op, DType t, int rows, int n) {
  return std::string(op) + " " + Name(t) + " " + std::to_string(rows) + "x" + std::to_string(n);
}

void CheckCopies(Checks& c, DType t, int rows, int hidden) {
  const int vocab = 1000;
  auto table = Normal(static_cast<size_t>(vocab) * hidden, 1);
  Round(table, t);
  auto ids = RandomIds(rows, vocab, 2);
  const auto want = [&] {
    std::vector<double> w;
    for (const int id : ids) {
      for (int i = 0; i < hidden; ++i) w.push_back(id < 0 ? 0.0 : table[static_cast<size_t>(id) * hidden + i]);
    }
    return w;
  };
  const Buffer d_table = UploadAs(table, t), d_ids = Upload(ids);
  const size_t n = static_cast<size_t>(rows) * hidden;
  Buffer out(n * ops::DTypeSize(t));
  c.Get<ops::GatherRowsFn>(OpId::kGatherRows, t)({out.get(), d_table.get(), d_ids.as<int32_t>(), rows, hidden}, {});
  c.Expect(Label("gather_rows", t, rows, hidden), RelativeError(DownloadAs(out.get(), n, t), want()), 0.0);

  ids[0] = -1;  // outside: zeros, and no read past the table
  const Buffer with_bad = Upload(ids);
  out.Poison();
  c.Get<ops::EmbeddingFn>(OpId::kEmbedding, t)({out.get(), d_table.get(), with_bad.as<int32_t>(), rows, hidden, vocab},
                                               {});
  c.Expect(Label("embedding", t, rows, hidden), RelativeError(DownloadAs(out.get(), n, t), want()), 0.0);
}

void CheckRmsNorm(Checks& c, DType t, int rows, int hidden, bool with_residual) {
  const size_t n = static_cast<size_t>(rows) * hidden;
  auto x = Normal(n, 3), residual = Normal(n, 4, 2.0f), weight = Normal(hidden, 5);
  for (auto* v : {&x, &residual, &weight}) Round(*v, t);
  auto sum = x;
  if (with_residual) {
    for (size_t i = 0; i < n; ++i) sum[i] += residual[i];
    Round(sum, t);
  }
  std::vector<double> want(n);
  for (int r = 0; r < rows; ++r) {
    double square = 0.0;
    for (int i = 0; i < hidden; ++i) square += double{sum[r * hidden + i]} * sum[r * hidden + i];
    const double scale = 1.0 / std::sqrt(square / hidden + 1e-5);
    for (int i = 0; i < hidden; ++i) want[r * hidden + i] = sum[r * hidden + i] * scale * weight[i];
  }
  const Buffer d_x = UploadAs(x, t), d_weight = UploadAs(weight, t);
  const Buffer d_residual = UploadAs(residual, t);
  Buffer out(n * ops::DTypeSize(t));
  const auto fn = c.Get<ops::RmsNormFn>(OpId::kRmsNorm, t);
  fn({out.get(), d_x.get(), with_residual ? d_residual.get() : nullptr, d_weight.get(), rows, hidden, 1e-5f}, {});
  const auto label = Label(with_residual ? "rms_norm+residual" : "rms_norm", t, rows, hidden);
  c.Expect(label, RelativeError(DownloadAs(out.get(), n, t), want), Tolerance(t));
  const std::vector<double> want_residual(with_residual ? sum.begin() : residual.begin(),
                                          with_residual ? sum.end() : residual.end());
  c.Expect(label + " stored", RelativeError(DownloadAs(d_residual.get(), n, t), want_residual), 0.0);
  // In place.
  const Buffer again = UploadAs(x, t);
  if (!with_residual) {
    fn({again.get(), again.get(), nullptr, d_weight.get(), rows, hidden, 1e-5f}, {});
    c.Expect(label + " in place", RelativeError(DownloadAs(again.get(), n, t), want), Tolerance(t));
  }
}

void CheckSiluMul(Checks& c, DType t, int rows, int n) {
  auto gate_up = Normal(static_cast<size_t>(rows) * 2 * n, 6, 3.0f);
  Round(gate_up, t);
  std::vector<double> want(static_cast<size_t>(rows) * n);
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < n; ++i) {
      const double g = gate_up[static_cast<size_t>(r) * 2 * n + i];
      want[static_cast<size_t>(r) * n + i] = g / (1.0 + std::exp(-g)) * gate_up[static_cast<size_t>(r) * 2 * n + n + i];
    }
  }
  const Buffer in = UploadAs(gate_up, t);
  Buffer out(want.size() * ops::DTypeSize(t));
  c.Get<ops::SiluMulFn>(OpId::kSiluMul, t)({out.get(), in.get(), rows, n}, {});
  c.Expect(Label("silu_mul", t, rows, n), RelativeError(DownloadAs(out.get(), want.size(), t), want), Tolerance(t));
}

}  // namespace

void CheckRows(Checks& c) {
  for (const DType t : kAllTypes) {
    for (const int rows : {1, 3, 64, 700}) {
      if (c.small && rows > 3) continue;
      for (const int hidden : {4096, 576, 2880, 5120, 100, 33, 1, 18432}) {
        if ((c.small && hidden > 600) || (rows > 64 && hidden > 5000)) continue;
        CheckCopies(c, t, rows, hidden);
        CheckRmsNorm(c, t, rows, hidden, false);
        CheckRmsNorm(c, t, rows, hidden, true);
        CheckSiluMul(c, t, rows, hidden);
      }
    }
    if (!c.small) CheckRmsNorm(c, t, 5, 40000, true);
  }
}

}  // namespace fastllm::cuda_check
