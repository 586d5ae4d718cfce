// Times the CPU ops at the shapes of SmolLM2-135M (hidden 576, 9 query and 3 KV heads of 64, vocabulary 49152).
//   ops_bench [name filter] [threads]
// One line per case: RESULT {"name", "value" and "reference" in microseconds (best arm, plain arm), "ratio"}.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "ops/contract/attention.h"
#include "ops/contract/embedding.h"
#include "ops/contract/kv_cache.h"
#include "ops/contract/rms_norm.h"
#include "ops/contract/rope.h"
#include "ops/contract/sampling.h"
#include "ops/contract/silu_mul.h"
#include "ops/cpu/isa.h"

namespace fastllm::ops {
namespace {

constexpr int kHidden = 576, kQHeads = 9, kKvHeads = 3, kDim = 64, kInter = 1536, kVocab = 49152, kBlock = 16;

std::vector<float> Random(size_t n, float scale = 1.0f) {
  static std::mt19937_64 rng(1);
  std::normal_distribution<float> d(0.0f, scale);
  std::vector<float> v(n);
  for (float& x : v) x = d(rng);
  return v;
}

// Microseconds of one call: the best of 15 groups, each long enough for the clock; other work on the machine can only
// add to a group.
double Time(const std::function<void()>& f) {
  using Clock = std::chrono::steady_clock;
  const auto us = [](Clock::duration d) { return std::chrono::duration<double, std::micro>(d).count(); };
  f();
  const auto start = Clock::now();
  f();
  const int repeat = std::max(1, static_cast<int>(2000.0 / std::max(0.05, us(Clock::now() - start))));
  std::vector<double> groups;
  for (int g = 0; g < 15; ++g) {
    const auto t = Clock::now();
    for (int i = 0; i < repeat; ++i) f();
    groups.push_back(us(Clock::now() - t) / repeat);
  }
  return *std::min_element(groups.begin(), groups.end());
}

class Bench {
 public:
  Bench(std::string filter, int threads) : filter_(std::move(filter)), threads_(threads) {
    RegisterCpuOps(plain_, CpuIsa::kPlain);
    RegisterCpuOps(best_);
  }

  template <typename Fn, typename Params>
  void Run(const std::string& name, OpId op, const Params& p) {
    if (name.find(filter_) == std::string::npos) return;
    const OpContext ctx{nullptr, threads_};
    const auto time = [&](const OpTable& table) {
      const Fn fn = table.Resolve<Fn>({op, Device::kCpu, DType::kF32}).value();
      return Time([&] { fn(p, ctx); });
    };
    const double value = time(best_);
    const double reference = time(plain_);
    std::printf("RESULT {\"name\": \"ops.%s.t%d\", \"value\": %.2f, \"unit\": \"us\", \"reference\": %.2f, "
                "\"ratio\": %.2f, \"arm\": \"%s\", \"reference_is\": \"plain arm\"}\n",
                name.c_str(), threads_, value, reference, reference / value,
                best_.Find({op, Device::kCpu, DType::kF32}).value()->name);
    std::fflush(stdout);
  }

 private:
  std::string filter_;
  int threads_;
  OpTable plain_;
  OpTable best_;
};

void Rows(Bench& b, int tokens) {
  std::string at(1, '.');
  at += std::to_string(tokens);
  at += "tok";
  auto x = Random(static_cast<size_t>(tokens) * kHidden), out = x, residual = x;
  const auto w = Random(kHidden);
  b.Run<RmsNormFn>("rms_norm" + at, OpId::kRmsNorm,
                   RmsNormParams{out.data(), x.data(), nullptr, w.data(), tokens, kHidden, 1e-5f});
  std::fill(x.begin(), x.end(), 0.0f);  // so that the residual stays finite over many calls
  b.Run<RmsNormFn>("rms_norm_add" + at, OpId::kRmsNorm,
                   RmsNormParams{out.data(), x.data(), residual.data(), w.data(), tokens, kHidden, 1e-5f});
  const auto gate_up = Random(static_cast<size_t>(tokens) * 2 * kInter);
  std::vector<float> act(static_cast<size_t>(tokens) * kInter);
  b.Run<SiluMulFn>("silu_mul" + at, OpId::kSiluMul, SiluMulParams{act.data(), gate_up.data(), tokens, kInter});

  const int stride = (kQHeads + 2 * kKvHeads) * kDim;
  auto qkv = Random(static_cast<size_t>(tokens) * stride);
  std::vector<float> cos_sin(static_cast<size_t>(tokens) * kDim);
  std::vector<int32_t> positions(tokens);
  for (int t = 0; t < tokens; ++t) positions[t] = t;
  for (int t = 0; t < tokens; ++t) {
    for (int i = 0; i < kDim / 2; ++i) {
      const double angle = t * std::pow(100000.0, -2.0 * i / kDim);
      cos_sin[t * kDim + i] = static_cast<float>(std::cos(angle));
      cos_sin[t * kDim + kDim / 2 + i] = static_cast<float>(std::sin(angle));
    }
  }
  RopeParams rope;
  rope.q = qkv.data();
  rope.k = qkv.data() + kQHeads * kDim;
  rope.cos_sin = cos_sin.data();
  rope.positions = positions.data();
  rope.q_stride = rope.k_stride = stride;
  rope.num_tokens = tokens;
  rope.num_q_heads = kQHeads;
  rope.num_kv_heads = kKvHeads;
  rope.head_dim = rope.rotary_dim = kDim;
  b.Run<RopeFn>("rope" + at, OpId::kRope, rope);
}

// `seqs` sequences of `seq_len` tokens in the cache, the last `query_len` of each being queries.
void Attention(Bench& b, const std::string& name, int seqs, int seq_len, int query_len) {
  const int per_seq = (seq_len + kBlock - 1) / kBlock, blocks = seqs * per_seq + 1;
  const size_t cache = static_cast<size_t>(blocks) * kKvHeads * kBlock * kDim;
  auto k = Random(cache), v = Random(cache);
  const auto q = Random(static_cast<size_t>(seqs) * query_len * kQHeads * kDim);
  std::vector<float> out(q.size());
  std::vector<int32_t> start(seqs + 1), len(seqs, seq_len), table(static_cast<size_t>(seqs) * per_seq);
  for (int s = 0; s <= seqs; ++s) start[s] = s * query_len;
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i + 1);
  std::shuffle(table.begin(), table.end(), std::mt19937_64(2));
  PagedAttentionParams p;
  p.cache = {k.data(), v.data(), blocks, kKvHeads, kBlock, kDim};
  p.out = out.data();
  p.q = q.data();
  p.query_start = start.data();
  p.seq_len = len.data();
  p.block_table = table.data();
  p.q_stride = kQHeads * kDim;
  p.num_tokens = seqs * query_len;
  p.num_seqs = seqs;
  p.max_blocks = per_seq;
  p.num_q_heads = kQHeads;
  p.scale = 0.125f;
  b.Run<PagedAttentionFn>("attention." + name, OpId::kPagedAttention, p);
}

void Sample(Bench& b, const std::string& name, int rows, const SampleRow& row, float spread) {
  const auto logits = Random(static_cast<size_t>(rows) * kVocab, spread);
  std::vector<SampleRow> how(rows, row);
  for (int r = 0; r < rows; ++r) how[r].counter = r;
  std::vector<int32_t> tokens(rows);
  SampleParams p;
  p.logits = logits.data();
  p.tokens = tokens.data();
  p.rows = how.data();
  p.logits_stride = kVocab;
  p.num_rows = rows;
  p.vocab = kVocab;
  b.Run<SampleFn>("sample." + name + "." + std::to_string(rows) + "row", OpId::kSample, p);
}

void Samples(Bench& b) {
  SampleRow row;
  for (const int rows : {1, 16}) {
    Sample(b, "greedy", rows, SampleRow{}, 3.0f);
    row = {};
    row.temperature = 1.0f;
    Sample(b, "temperature", rows, row, 3.0f);
    row.top_k = 50;
    Sample(b, "top_k50", rows, row, 3.0f);
    row.top_p = 0.9f;
    Sample(b, "top_k50_top_p0.9", rows, row, 3.0f);
    row.top_k = 0;
    Sample(b, "top_p0.9", rows, row, 3.0f);
    Sample(b, "top_p0.9_flat", rows, row, 0.1f);
    row.top_p = 1.0f;
    row.min_p = 0.05f;
    Sample(b, "min_p0.05", rows, row, 3.0f);
  }
}

void Main(const std::string& filter, int threads) {
  Bench b(filter, threads);
  Rows(b, 1);
  Rows(b, 16);
  Rows(b, 512);
  Attention(b, "decode_1x512", 1, 512, 1);
  Attention(b, "decode_16x512", 16, 512, 1);
  Attention(b, "prefill_1x512", 1, 512, 512);
  Attention(b, "chunk_1x64_at_512", 1, 512, 64);
  Samples(b);
}

}  // namespace
}  // namespace fastllm::ops

int main(int argc, char** argv) {
  fastllm::ops::Main(argc > 1 ? argv[1] : "", argc > 2 ? std::atoi(argv[2]) : 2);
  return 0;
}
