// The device sampler against the CPU arm: the same token for the same (logits, rule, seed, counter). A draw within
// rounding of the border between two tokens may fall on either side, so a few in ten thousand may differ.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "ops/contract/logprobs.h"
#include "ops/contract/sampling.h"
#include "support.h"

namespace fastllm::cuda_check {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Batch {
  int vocab = 0;
  std::vector<float> logits;
  std::vector<ops::SampleRow> rows;
  std::vector<int32_t> ban_ids, ban_start = {0};
  std::vector<ops::PenaltyRow> penalties = {};  // empty, or one a row
  std::vector<ops::TokenBias> biases = {};
  std::vector<ops::TokenTally> counts = {};

  void Add(std::vector<float> row, const ops::SampleRow& rule, const std::vector<int32_t>& bans = {}) {
    logits.insert(logits.end(), row.begin(), row.end());
    rows.push_back(rule);
    ban_ids.insert(ban_ids.end(), bans.begin(), bans.end());
    ban_start.push_back(static_cast<int32_t>(ban_ids.size()));
  }
};

std::vector<int32_t> RunCpu(const Batch& b) {
  ops::OpTable table;
  ops::RegisterCpuOps(table);
  const auto fn = table.Resolve<ops::SampleFn>({OpId::kSample, ops::Device::kCpu, DType::kF32}).value();
  std::vector<int32_t> tokens(b.rows.size());
  Parallel(static_cast<int64_t>(b.rows.size()), [&](int64_t r) {
    ops::SampleParams p{
        b.logits.data() + r * b.vocab, &tokens[r], &b.rows[r], b.ban_ids.data(), &b.ban_start[r], b.vocab, 1, b.vocab};
    p.penalties = b.penalties.empty() ? nullptr : &b.penalties[r];
    p.counts = b.counts.data();
    p.biases = b.biases.data();
    fn(p, {});
  });
  return tokens;
}

std::vector<int32_t> RunCuda(Checks& c, const Batch& b) {
  const Buffer logits = Upload(b.logits), rows = Upload(b.rows), ids = Upload(b.ban_ids), start = Upload(b.ban_start);
  Buffer tokens(b.rows.size() * 4);
  const Buffer penalties = Upload(b.penalties), counts = Upload(b.counts), biases = Upload(b.biases);
  const auto fn = c.Get<ops::SampleFn>(OpId::kSample, DType::kF32);
  ops::SampleParams p{logits.as<float>(),
                      tokens.as<int32_t>(),
                      rows.as<ops::SampleRow>(),
                      ids.as<int32_t>(),
                      start.as<int32_t>(),
                      b.vocab,
                      static_cast<int32_t>(b.rows.size()),
                      b.vocab};
  p.penalties = b.penalties.empty() ? nullptr : penalties.as<ops::PenaltyRow>();
  p.counts = counts.as<ops::TokenTally>();
  p.biases = biases.as<ops::TokenBias>();
  fn(p, {});
  return Download<int32_t>(tokens.get(), b.rows.size());
}

void Compare(Checks& c, const std::string& label, const Batch& b, double allowed_share) {
  const auto want = RunCpu(b), got = RunCuda(c, b);
  size_t different = 0;
  std::string where;
  for (size_t r = 0; r < want.size(); ++r) {
    if (want[r] == got[r]) continue;
    ++different;
    where = " (row " + std::to_string(r) + ": " + std::to_string(got[r]) + " for " + std::to_string(want[r]) + ")";
  }
  c.Expect("sample " + label + " vocab " + std::to_string(b.vocab) + where,
           static_cast<double>(different) / static_cast<double>(want.size()), allowed_share);
}

std::vector<float> Logits(int vocab, std::mt19937_64& rng, int kind) {
  std::vector<float> x(vocab);
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(rng);
  for (float& v : x) {
    if (kind == 1) v *= 4.0f;                                         // peaked
    if (kind == 2) v *= 0.01f;                                        // nearly flat
    if (kind == 3) v = 1.25f;                                         // flat: ties decide
    if (kind == 4) v = std::round(v * 2.0f);                          // many ties
    if (kind == 5 && rng() % 50 != 0) v = -kInf;                      // few tokens left
    if (kind == 6) v = v * 3.0f - (rng() % 100 == 0 ? 1e30f : 0.0f);  // far outliers
  }
  return x;
}

ops::SampleRow Rule(std::mt19937_64& rng, int vocab) {
  ops::SampleRow r;
  const auto unit = [&] { return static_cast<float>(rng() % 1000 + 1) / 1000.0f; };
  r.temperature = rng() % 6 == 0 ? 0.0f : 0.1f + 2.0f * unit();
  if (rng() % 2 == 0) r.top_k = static_cast<int32_t>(1 + rng() % (rng() % 3 == 0 ? vocab : 60));
  if (rng() % 2 == 0) r.top_p = unit();
  if (rng() % 4 == 0) r.min_p = unit() * 0.2f;
  r.seed = rng();
  r.counter = rng() % 5000;
  return r;
}

void CheckRandom(Checks& c, int vocab, int rows) {
  std::mt19937_64 rng(vocab);
  Batch b{vocab, {}, {}, {}};
  for (int r = 0; r < rows; ++r) {
    std::vector<int32_t> bans;
    for (int i = 0; i < static_cast<int>(rng() % 4); ++i) bans.push_back(static_cast<int32_t>(rng() % vocab));
    if (r % 16 == 0) bans.push_back(-5), bans.push_back(vocab + 3);  // outside: ignored
    b.Add(Logits(vocab, rng, r % 7), Rule(rng, vocab), bans);
  }
  Compare(c, "random", b, rows >= 400 ? 0.004 : 0.011);
}

// Penalties and biases of every kind, on rows of every kind; every fifth row has none.
void CheckPenalties(Checks& c, int vocab, int rows) {
  std::mt19937_64 rng(vocab + 1);
  const auto unit = [&] { return static_cast<float>(rng() % 1000) / 1000.0f; };
  Batch b{vocab, {}, {}, {}};
  for (int r = 0; r < rows; ++r) {
    std::vector<int32_t> bans;
    if (r % 3 == 0) bans.push_back(static_cast<int32_t>(rng() % vocab));
    b.Add(Logits(vocab, rng, r % 7), Rule(rng, vocab), bans);
    ops::PenaltyRow p;
    const int kind = r % 5;
    if (kind > 0) p.count_row = r;
    if (kind == 1 || kind == 4) p.repetition_penalty = 0.5f + 1.5f * unit();
    if (kind == 2 || kind == 4) p.frequency_penalty = 2.0f * unit() - 0.7f;
    if (kind == 3 || kind == 4) p.presence_penalty = 2.0f * unit() - 0.7f;
    p.bias_begin = p.bias_end = static_cast<int32_t>(b.biases.size());
    if (r % 2 == 0 && vocab > 3) {
      std::vector<int32_t> ids(std::min(vocab, 20));
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * 7919 + r) % vocab);
      std::sort(ids.begin(), ids.end());
      ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
      for (const int32_t id : ids) b.biases.push_back({id, 6.0f * unit() - 3.0f});
      b.biases.push_back({vocab + 5, 100.0f});  // outside: passed over
      p.bias_end = static_cast<int32_t>(b.biases.size());
    }
    b.penalties.push_back(p);
    for (int i = 0; i < vocab; ++i) {
      const uint64_t draw = rng() % 8;
      b.counts.push_back(draw < 5 ? 0
                                  : static_cast<ops::TokenTally>((draw == 5 ? 0 : 1 + rng() % 9) |
                                                                 (draw < 7 ? ops::kTallyInPrompt : 0)));
    }
  }
  Compare(c, "penalties", b, rows >= 400 ? 0.004 : 0.011);
}

void CheckSpecial(Checks& c, int vocab) {
  std::mt19937_64 rng(3);
  Batch b{vocab, {}, {}, {}};
  ops::SampleRow hot{1.0f, 0.9f, 0.0f, 20, 5, 6}, greedy{};
  for (const ops::SampleRow& rule : {hot, greedy, ops::SampleRow{0.8f, 1.0f, 0.0f, 0, 7, 8}}) {
    auto x = Logits(vocab, rng, 0);
    auto with_nan = x, with_inf = x, nothing = x, only_inf = x;
    with_nan[vocab / 2] = NAN;
    with_inf[vocab - 1] = with_inf[vocab / 3] = kInf;
    for (float& v : nothing) v = -kInf;
    only_inf = nothing;
    only_inf[0] = kInf;
    std::vector<int32_t> all(vocab);
    for (int i = 0; i < vocab; ++i) all[i] = i;
    b.Add(x, rule);
    b.Add(with_nan, rule);
    b.Add(with_inf, rule);
    b.Add(nothing, rule);
    b.Add(only_inf, rule);
    b.Add(x, rule, all);
    b.Add(with_inf, rule, {vocab - 1, vocab / 3});
  }
  Compare(c, "special values", b, 0.0);
}

// A row for each way through the kernel: greedy, top_k and top_p among gathered candidates, top_p of a flat row (too
// many candidates from 2,049 tokens on, so by bisection), top_k of the same, and no limit but min_p; two more with
// penalties and biases. All in one launch: racecheck takes 1.6 s for a launch and 5 s for a row that is bisected.
void CheckPaths(Checks& c, int vocab) {
  std::mt19937_64 rng(vocab + 3);
  Batch b{vocab, {}, {}, {}};
  b.Add(Logits(vocab, rng, 1), {}, {vocab / 2, vocab + 3});
  b.Add(Logits(vocab, rng, 0), {0.9f, 0.9f, 0.0f, 20, 5, 6}, {vocab - 1});
  b.Add(Logits(vocab, rng, 3), {1.0f, 0.5f, 0.0f, 0, 7, 8});
  if (!c.tiny) b.Add(Logits(vocab, rng, 3), {1.0f, 1.0f, 0.0f, vocab - 1, 9, 10});
  b.Add(Logits(vocab, rng, 5), {1.3f, 1.0f, 0.01f, 0, 11, 12});
  b.penalties.resize(b.rows.size());
  for (const ops::SampleRow& rule : {ops::SampleRow{}, {0.7f, 0.8f, 0.0f, 0, 13, 14}}) {
    ops::PenaltyRow p;
    p.count_row = static_cast<int32_t>(b.biases.size());
    p.repetition_penalty = 1.2f;
    p.frequency_penalty = 0.3f;
    p.presence_penalty = -0.4f;
    p.bias_begin = p.count_row;
    p.bias_end = p.count_row + 1;
    b.biases.push_back({vocab / 3, 1.5f});
    for (int i = 0; i < vocab; ++i) b.counts.push_back(static_cast<ops::TokenTally>(i % 5 == 0 ? i % 3 : 0));
    b.Add(Logits(vocab, rng, 0), rule, {vocab / 2});
    b.penalties.push_back(p);
  }
  Compare(c, "paths", b, 0.0);
}

struct LogprobsAnswer {
  std::vector<float> token, top, ids;
  std::vector<int32_t> ranks, top_ids;
};

constexpr int kTops = 25;

// Rows of logits, three listed ids each; every third token is one that was drawn.
LogprobsAnswer RunLogprobs(ops::LogprobsFn fn, const std::vector<float>& logits, int vocab, bool on_device) {
  const int rows = static_cast<int>(logits.size()) / vocab;
  std::mt19937_64 rng(rows + vocab);
  std::vector<int32_t> listed, drawn(rows);
  std::vector<ops::LogprobsRow> asks(rows);
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < 3; ++i) listed.push_back(static_cast<int32_t>(rng() % (vocab + 1)) - (i == 0 ? 1 : 0));
    drawn[r] = r % 9 == 0 ? -1 : static_cast<int32_t>(rng() % vocab);
    asks[r].token = r % 3 == 0 ? ops::kDrawnToken : r % 3 == 1 ? -1 : static_cast<int32_t>(rng() % vocab);
    asks[r].top_k = r % 4 == 0 ? 0 : 1 + static_cast<int32_t>(rng() % kTops);
    asks[r].temperature = r % 2 == 0 ? 1.0f : 0.5f + 0.01f * static_cast<float>(rng() % 100);
  }
  LogprobsAnswer a{std::vector<float>(rows, 9.0f), std::vector<float>(rows * kTops, 9.0f),
                   std::vector<float>(rows * 3, 9.0f), std::vector<int32_t>(rows, 9),
                   std::vector<int32_t>(rows * kTops, 9)};
  const Buffer d_logits = Upload(logits), d_listed = Upload(listed), d_drawn = Upload(drawn);
  const Buffer token = Upload(a.token), top = Upload(a.top), ids = Upload(a.ids), ranks = Upload(a.ranks),
               top_ids = Upload(a.top_ids);
  for (int r = 0; r < rows; ++r) {
    asks[r].ids = {(on_device ? d_listed.as<int32_t>() : listed.data()) + r * 3, r % 5 == 0 ? 3 : 0};
    asks[r].id_logprobs = (on_device ? ids.as<float>() : a.ids.data()) + r * 3;
  }
  const Buffer d_asks = Upload(asks);
  ops::LogprobsParams p{logits.data(), asks.data(), a.token.data(), a.ranks.data(), a.top_ids.data(), a.top.data(),
                        vocab,         kTops,       rows,           vocab,          drawn.data()};
  if (on_device) {
    p = {d_logits.as<float>(),
         d_asks.as<ops::LogprobsRow>(),
         token.as<float>(),
         ranks.as<int32_t>(),
         top_ids.as<int32_t>(),
         top.as<float>(),
         vocab,
         kTops,
         rows,
         vocab,
         d_drawn.as<int32_t>()};
  }
  fn(p, {nullptr, 1});
  if (!on_device) return a;
  return {Download<float>(token.get(), a.token.size()), Download<float>(top.get(), a.top.size()),
          Download<float>(ids.get(), a.ids.size()), Download<int32_t>(ranks.get(), a.ranks.size()),
          Download<int32_t>(top_ids.get(), a.top_ids.size())};
}

// Largest difference, relative to what float32 keeps of a logprob; NaN and infinities must be in the same places.
double LogprobError(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double e = std::abs(double{a[i]} - b[i]) / std::max(1.0, std::abs(double{b[i]}) / 32);
    worst = e <= worst ? worst : std::isnan(e) ? INFINITY : e;
  }
  return worst;
}

void CheckLogprobs(Checks& c, int vocab, int rows) {
  std::mt19937_64 rng(vocab + 2);
  std::vector<float> logits;
  for (int r = 0; r < rows; ++r) {
    auto x = Logits(vocab, rng, r % 7);
    if (r % 31 == 30) x[rng() % vocab] = NAN;
    if (r % 31 == 29) x[rng() % vocab] = kInf;
    if (r % 31 == 28) std::fill(x.begin(), x.end(), -kInf);
    logits.insert(logits.end(), x.begin(), x.end());
  }
  ops::OpTable cpu;
  ops::RegisterCpuOps(cpu);
  const auto on_cpu = *cpu.Resolve<ops::LogprobsFn>({OpId::kLogprobs, ops::Device::kCpu, DType::kF32});
  const auto want = RunLogprobs(on_cpu, logits, vocab, false);
  const auto got = RunLogprobs(c.Get<ops::LogprobsFn>(OpId::kLogprobs, DType::kF32), logits, vocab, true);
  const std::string label = "logprobs vocab " + std::to_string(vocab);
  c.Expect(label + ": of tokens", LogprobError(got.token, want.token), 4e-6);
  c.Expect(label + ": of the top", LogprobError(got.top, want.top), 4e-6);
  c.Expect(label + ": of listed ids", LogprobError(got.ids, want.ids), 4e-6);
  c.ExpectTrue(label + ": ranks", got.ranks == want.ranks);
  c.ExpectTrue(label + ": top ids", got.top_ids == want.top_ids);
}

// For racecheck: blocks without tokens, more tokens than are gathered, one block that reads the row where it is.
void CheckSampleTiny(Checks& c) {
  for (const int vocab : {33, 2052}) CheckPaths(c, vocab);
  for (const int vocab : {33, 393220}) CheckLogprobs(c, vocab, 4);
}

}  // namespace

void CheckSample(Checks& c) {
  if (c.tiny) return CheckSampleTiny(c);
  // On both sides of: a slice of four tokens a block, the candidates that are gathered, a token a thread, one batch of
  // loads, and what the shared memory of a cluster holds.
  for (const int vocab : {1, 32, 33, 2048, 2052, 4096, 4100, 65536, 65540, 393216, 393220}) CheckPaths(c, vocab);
  for (const int vocab : {1, 2, 7, 33, 1000}) {
    CheckRandom(c, vocab, c.small ? 60 : 700);
    if (vocab > 3) CheckSpecial(c, vocab);
    CheckPenalties(c, vocab, c.small ? 60 : 400);
    CheckLogprobs(c, vocab, 93);
  }
  if (c.small) return;
  CheckRandom(c, 32000, 700);
  CheckRandom(c, 128256, 420);
  CheckRandom(c, 151936, 140);
  CheckRandom(c, 262144, 140);
  CheckRandom(c, 400000, 91);  // more than the blocks of a cluster hold
  CheckSpecial(c, 128256);
  CheckPenalties(c, 128256, 140);
  CheckPenalties(c, 400000, 91);
  CheckLogprobs(c, 128256, 93);
  CheckLogprobs(c, 400000, 62);
}

}  // namespace fastllm::cuda_check
