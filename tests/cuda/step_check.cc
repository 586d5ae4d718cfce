// What a step begins and ends with, dummy weights, and linear for few rows.
#include <algorithm>
#include <cmath>
#include <random>

#include "ops/contract/feed.h"
#include "ops/contract/linear.h"
#include "ops/contract/random_fill.h"
#include "support.h"

namespace fastllm::cuda_check {
namespace {

void CheckFeed(Checks& c, int tokens, int seqs, int width) {
  constexpr int kSlots = 50, kMaxBlocks = 70;
  std::mt19937_64 rng(tokens + seqs);
  std::vector<int32_t> planned(tokens), last(kSlots), packed(static_cast<size_t>(seqs) * width), w = {width};
  for (auto& p : planned)
    p = rng() % 2 == 0 ? static_cast<int32_t>(rng() % 1000) : -1 - static_cast<int32_t>(rng() % kSlots);
  for (auto& t : last) t = static_cast<int32_t>(rng() % 1000);
  for (auto& b : packed) b = static_cast<int32_t>(rng() % 5000);
  const Buffer d_planned = Upload(planned), d_last = Upload(last), d_packed = Upload(packed), d_width = Upload(w);
  Buffer ids(tokens * 4), table(static_cast<size_t>(seqs) * kMaxBlocks * 4);
  ops::FeedTokensParams p{ids.as<int32_t>(),
                          d_planned.as<int32_t>(),
                          d_last.as<int32_t>(),
                          table.as<int32_t>(),
                          d_packed.as<int32_t>(),
                          d_width.as<int32_t>(),
                          tokens,
                          seqs,
                          kMaxBlocks,
                          kSlots};
  c.Get<ops::FeedTokensFn>(OpId::kFeedTokens, DType::kF32)(p, {});
  bool ok = true;
  const auto got = Download<int32_t>(ids.get(), tokens);
  for (int t = 0; t < tokens; ++t) ok &= got[t] == (planned[t] >= 0 ? planned[t] : last[-1 - planned[t]]);
  const auto rows = Download<int32_t>(table.get(), static_cast<size_t>(seqs) * kMaxBlocks);
  for (int s = 0; s < seqs; ++s) {
    for (int b = 0; b < kMaxBlocks; ++b) {
      ok &= rows[s * kMaxBlocks + b] == (b < width ? packed[s * width + b] : -1);  // poison stays
    }
  }
  c.ExpectTrue("feed_tokens " + std::to_string(tokens) + " tokens, " + std::to_string(seqs) + " sequences", ok);
}

void CheckKeep(Checks& c) {
  const std::vector<int32_t> tokens = {7, -1, 9, 11}, slots = {3, 0, -1, 2};
  const Buffer d_tokens = Upload(tokens), d_slots = Upload(slots), last = Upload(std::vector<int32_t>{1, 1, 1, 1});
  c.Get<ops::KeepTokensFn>(OpId::kKeepTokens, DType::kF32)(
      {last.as<int32_t>(), d_tokens.as<int32_t>(), d_slots.as<int32_t>(), 4, 4}, {});
  c.ExpectTrue("keep_tokens", Download<int32_t>(last.get(), 4) == std::vector<int32_t>({0, 1, 11, 7}));
}

// Against the CPU arm: rows reset or grown, tokens in the prompt and in the output, many times over, and full tallies.
void CheckCounts(Checks& c, int vocab, int rows) {
  std::mt19937_64 rng(vocab + rows);
  std::vector<ops::TokenTally> counts(static_cast<size_t>(vocab) * rows);
  for (auto& t : counts) t = static_cast<ops::TokenTally>(rng() % 4 == 0 ? ops::kMostCounted - rng() % 2 : rng() % 3);
  std::vector<ops::CountSegment> segments;
  std::vector<int32_t> ids, kept(rows), count_rows(rows), slots(rows, -1);
  for (int r = rows - 1; r >= 0; r -= 2) {
    ops::CountSegment s{r, static_cast<int32_t>(ids.size()), 0, static_cast<int32_t>(rng() % 300), rng() % 2 == 0};
    for (int i = 0; i < s.num_prompt + static_cast<int>(rng() % 500); ++i) {
      ids.push_back(static_cast<int32_t>(rng() % std::min(vocab, rng() % 2 == 0 ? 5 : 1000)));
    }
    s.end = static_cast<int32_t>(ids.size());
    segments.push_back(s);
  }
  for (int r = 0; r < rows; ++r) {
    kept[r] = static_cast<int32_t>(rng() % vocab);
    count_rows[r] = r % 3 == 0 ? -1 : r;
  }
  const Buffer d_counts = Upload(counts), d_segments = Upload(segments), d_ids = Upload(ids), d_kept = Upload(kept),
               d_rows = Upload(count_rows), d_slots = Upload(slots);
  ops::CountTokensParams count{counts.data(), segments.data(), ids.data(), static_cast<int32_t>(segments.size()), rows,
                               vocab};
  ops::KeepTokensParams keep{nullptr,       kept.data(),       slots.data(), rows, 0,
                             counts.data(), count_rows.data(), rows,         vocab};
  ops::OpTable cpu;
  ops::RegisterCpuOps(cpu);
  (*cpu.Resolve<ops::CountTokensFn>({OpId::kCountTokens, ops::Device::kCpu, DType::kF32}))(count, {});
  (*cpu.Resolve<ops::KeepTokensFn>({OpId::kKeepTokens, ops::Device::kCpu, DType::kF32}))(keep, {});
  count.counts = keep.counts = d_counts.as<ops::TokenTally>();
  count.segments = d_segments.as<ops::CountSegment>();
  count.ids = d_ids.as<int32_t>();
  keep.tokens = d_kept.as<int32_t>();
  keep.slots = d_slots.as<int32_t>();
  keep.count_rows = d_rows.as<int32_t>();
  c.Get<ops::CountTokensFn>(OpId::kCountTokens, DType::kF32)(count, {});
  c.Get<ops::KeepTokensFn>(OpId::kKeepTokens, DType::kF32)(keep, {});
  c.ExpectTrue("count_tokens vocab " + std::to_string(vocab) + " rows " + std::to_string(rows),
               Download<ops::TokenTally>(d_counts.get(), counts.size()) == counts);
}

void CheckRandomFill(Checks& c, DType t) {
  constexpr int64_t kCount = 100003;
  ops::RandomFillParams p;
  std::vector<float> want(kCount);
  p.out = want.data();
  p.key = 0x123456789abcdefull;
  p.first = 1000;
  p.count = kCount;
  p.mean = 1.0f;
  p.scale = 0.0346f;
  ops::OpTable cpu;
  ops::RegisterCpuOps(cpu);
  (*cpu.Resolve<ops::RandomFillFn>({OpId::kRandomFill, ops::Device::kCpu, DType::kF32}))(p, {});
  Round(want, t);
  Buffer out(kCount * ops::DTypeSize(t));
  p.out = out.get();
  c.Get<ops::RandomFillFn>(OpId::kRandomFill, t)(p, {});
  c.ExpectTrue(std::string("random_fill ") + Name(t), DownloadAs(out.get(), kCount, t) == want);
}

// The product in float64, gated as the separate ops would.
std::vector<double> Reference(const std::vector<float>& x, const std::vector<float>& w, const std::vector<float>& bias,
                              int m, int n, int k, bool gated, DType t) {
  const int rows = gated ? 2 * n : n;
  std::vector<double> y(static_cast<size_t>(m) * rows);
  Parallel(rows, [&](int64_t r) {
    for (int i = 0; i < m; ++i) {
      double s = bias.empty() ? 0.0 : bias[r];
      for (int j = 0; j < k; ++j) s += double{x[static_cast<size_t>(i) * k + j]} * w[static_cast<size_t>(r) * k + j];
      y[static_cast<size_t>(i) * rows + r] = s;
    }
  });
  if (!gated) return y;
  std::vector<double> out(static_cast<size_t>(m) * n);
  for (int i = 0; i < m; ++i) {
    std::vector<float> both(y.begin() + static_cast<size_t>(i) * rows, y.begin() + static_cast<size_t>(i + 1) * rows);
    Round(both, t);
    for (int j = 0; j < n; ++j)
      out[static_cast<size_t>(i) * n + j] = both[j] / (1.0 + std::exp(-both[j])) * both[n + j];
  }
  return out;
}

void CheckLinear(Checks& c, DType t, int m, int n, int k, bool bias, bool f32, bool gated) {
  const int rows = gated ? 2 * n : n;
  auto x = Normal(static_cast<size_t>(m) * k, 1),
       w = Normal(static_cast<size_t>(rows) * k, 2, 1.0f / std::sqrt(float(k)));
  auto b = bias ? Normal(n, 3) : std::vector<float>();
  Round(x, t);
  Round(w, t);
  Round(b, t);
  const Buffer d_x = UploadAs(x, t), d_w = UploadAs(w, t), d_b = UploadAs(bias ? b : std::vector<float>(1), t);
  const DType out_type = f32 ? DType::kF32 : t;
  const size_t count = static_cast<size_t>(m) * n;
  Buffer out(count * ops::DTypeSize(out_type));
  ops::LinearParams p{out.get(), d_x.get(), d_w.get(), bias ? d_b.get() : nullptr, m, n, k, f32};
  const auto fn = c.Get<ops::LinearFn>(gated ? OpId::kLinearSiluMul : OpId::kLinear, t);
  fn(p, {});
  const std::string label = std::string(gated ? "linear_silu_mul " : "linear ") + Name(t) + " " + std::to_string(m) +
                            "x" + std::to_string(k) + " to " + std::to_string(n);
  c.Expect(label, RelativeError(DownloadAs(out.get(), count, out_type), Reference(x, w, b, m, n, k, gated, t)),
           gated ? 3 * Tolerance(t)
           : f32 ? 1e-5
                 : Tolerance(t));
}

}  // namespace

void CheckStep(Checks& c) {
  for (const int tokens : {1, 255, 600}) CheckFeed(c, tokens, 1 + tokens / 3, 1 + tokens / 10);
  CheckKeep(c);
  for (const int vocab : {5, 1001, 32000}) CheckCounts(c, vocab, 9);
  for (const DType t : kAllTypes) CheckRandomFill(c, t);
  for (const DType t : {DType::kF16, DType::kBF16}) {
    for (const int m : {1, 3, 8, 9, 16, 17, 32}) {
      CheckLinear(c, t, m, 48, 32, true, false, false);
      CheckLinear(c, t, m, 1001, 544, true, false, false);  // no multiple of 16 rows, chunks that do not divide evenly
      CheckLinear(c, t, m, 1001, 544, false, true, false);
      CheckLinear(c, t, m, 500, 544, false, false, true);
      if (c.small) continue;
      CheckLinear(c, t, m, 4096, 14336, false, false, false);
      CheckLinear(c, t, m, 3584, 4096, false, false, true);
    }
  }
}

}  // namespace fastllm::cuda_check
