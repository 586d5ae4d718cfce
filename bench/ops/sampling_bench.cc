// Times what turns the logits of 256 rows into tokens and logprobs; bench/sampling_torch.py times the same in torch.
//   sampling_bench [name filter] [threads]
// One line per case: RESULT {"name": "sampling/...", "value" in milliseconds, the best of kCalls calls}.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ops/contract/logits.h"
#include "ops/contract/logprobs.h"
#include "ops/contract/sampling.h"
#include "ops/table/op_table.h"
#include "timer.h"

namespace fastllm::ops {
namespace {

constexpr int kRows = 256, kCalls = 12;
constexpr int kPromptTokens = 400, kOutputTokens = 200, kBiased = 20;  // distinct ids of a row's penalties and biases
constexpr float kDeviation = 4.0f;  // of the normal logits; the 0.9 nucleus then holds some hundred tokens

class SamplingBench {
 public:
  SamplingBench(int vocab, std::string filter, int threads)
      : vocab_(vocab),
        filter_(std::move(filter)),
        ctx_{nullptr, threads},
        logits_(static_cast<size_t>(kRows) * vocab),
        tokens_(kRows) {
    std::minstd_rand rng(vocab);
    std::normal_distribution<float> d(0.0f, kDeviation);
    for (float& x : logits_) x = d(rng);
  }

  void Run() {
    SampleRow row;
    Report("greedy", [] {}, [&] { Sample(row); });
    row.temperature = 0.8f;
    row.top_p = 0.9f;
    Report("top_p", [] {}, [&] { Sample(row); });
    Penalties();
    Logprobs();
  }

 private:
  template <typename Fn>
  Fn Op(OpId op) const {
    return BuiltinOps().Resolve<Fn>({op, Device::kCpu, DType::kF32}).value();
  }

  void Report(const std::string& what, const std::function<void()>& prepare, const std::function<void()>& f) {
    const std::string name = "sampling/" + what + ".256x" + std::to_string(vocab_);
    if (name.find(filter_) == std::string::npos) return;
    prepare();
    f();
    std::printf("RESULT {\"name\": \"%s\", \"value\": %.4f, \"unit\": \"ms\", \"reference\": null, \"ratio\": null}\n",
                name.c_str(), BestOf(kCalls, prepare, f) / 1000.0);
    std::fflush(stdout);
  }

  void Sample(const SampleRow& row) {
    std::vector<SampleRow> how(kRows, row);
    for (int r = 0; r < kRows; ++r) how[r].counter = static_cast<uint64_t>(r);
    SampleParams p;
    p.logits = logits_.data();
    p.tokens = tokens_.data();
    p.rows = how.data();
    p.logits_stride = vocab_;
    p.num_rows = kRows;
    p.vocab = vocab_;
    Op<SampleFn>(OpId::kSample)(p, ctx_);
  }

  // All penalties and logit_bias, then top_k 50.
  void Penalties() {
    std::vector<std::vector<TokenCount>> counts(kRows);
    std::vector<std::vector<TokenBias>> biases(kRows);
    std::vector<LogitsRow> how(kRows);
    std::vector<float> kept;
    std::minstd_rand rng(3);
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kPromptTokens + kOutputTokens; ++i) {
        const auto id = static_cast<int32_t>((static_cast<int64_t>(i) * vocab_ + rng() % vocab_) / 600);
        counts[r].push_back({id, i % 3 == 0 ? 1 + i % 4 : 0, i % 3 != 0});
        kept.push_back(logits_[static_cast<size_t>(r) * vocab_ + id]);
      }
      for (int i = 0; i < kBiased; ++i) biases[r].push_back({counts[r][i * 7].id, 1.5f});
      how[r].counts = {counts[r].data(), static_cast<int32_t>(counts[r].size())};
      how[r].logit_bias = {biases[r].data(), kBiased};
      how[r].repetition_penalty = 1.1f;
      how[r].frequency_penalty = 0.3f;
      how[r].presence_penalty = 0.2f;
    }
    const auto restore = [&] {
      size_t next = 0;
      for (int r = 0; r < kRows; ++r) {
        for (const TokenCount& c : counts[r]) logits_[static_cast<size_t>(r) * vocab_ + c.id] = kept[next++];
      }
    };
    ProcessLogitsParams p;
    p.logits = logits_.data();
    p.rows = how.data();
    p.logits_stride = vocab_;
    p.num_rows = kRows;
    p.vocab = vocab_;
    SampleRow row;
    row.temperature = 0.8f;
    row.top_k = 50;
    Report("penalties_bias_top_k", restore, [&] {
      Op<ProcessLogitsFn>(OpId::kProcessLogits)(p, ctx_);
      Sample(row);
    });
    restore();
  }

  // Logprob and rank of one token, and the five most likely.
  void Logprobs() {
    std::vector<LogprobsRow> how(kRows);
    std::vector<float> logprobs(kRows), top_logprobs(kRows * 5);
    std::vector<int32_t> ranks(kRows), top_ids(kRows * 5);
    for (int r = 0; r < kRows; ++r) {
      how[r].token = tokens_[r];  // as sampled
      how[r].top_k = 5;
    }
    LogprobsParams p;
    p.logits = logits_.data();
    p.rows = how.data();
    p.token_logprobs = logprobs.data();
    p.token_ranks = ranks.data();
    p.top_ids = top_ids.data();
    p.top_logprobs = top_logprobs.data();
    p.logits_stride = vocab_;
    p.top_stride = 5;
    p.num_rows = kRows;
    p.vocab = vocab_;
    Report("logprobs_5", [] {}, [&] { Op<LogprobsFn>(OpId::kLogprobs)(p, ctx_); });
  }

  int vocab_;
  std::string filter_;
  OpContext ctx_;
  std::vector<float> logits_;
  std::vector<int32_t> tokens_;
};

}  // namespace
}  // namespace fastllm::ops

int main(int argc, char** argv) {
  const std::string filter = argc > 1 ? argv[1] : "";
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  for (const int vocab : {49152, 152064}) fastllm::ops::SamplingBench(vocab, filter, threads).Run();
  return 0;
}
