#include <algorithm>

#include "bench/ops/cuda_bench.h"
#include "ops/contract/sampling.h"

namespace fastllm::cuda_bench {
namespace {

constexpr int kVocab = 128256;

void Sample(Bench& b, const std::string& rule_name, const ops::SampleRow& rule, int rows, float scale) {
  const double bytes = 4.0 * rows * kVocab;
  const int sets = std::min(SetsFor(bytes), 8);
  const size_t block = size_t{1} << 22;
  const auto host = cuda_check::Normal(block, 41, scale);
  std::vector<float> all(static_cast<size_t>(rows) * kVocab * sets);
  for (size_t i = 0; i < all.size(); ++i) all[i] = host[i % block];
  const Buffer logits = cuda_check::Upload(all), tokens(static_cast<size_t>(rows) * 4);
  std::vector<ops::SampleRow> rules(rows, rule);
  for (int r = 0; r < rows; ++r) rules[r].counter = r;
  const Buffer d_rules = cuda_check::Upload(rules);
  const auto fn = b.Get<ops::SampleFn>(OpId::kSample, DType::kF32);
  b.Time({"sample", rule_name + " B=" + std::to_string(rows), bytes}, sets, [&](int s, void* stream) {
    fn({logits.as<float>() + static_cast<size_t>(s) * rows * kVocab, tokens.as<int32_t>(), d_rules.as<ops::SampleRow>(),
        nullptr, nullptr, kVocab, rows, kVocab},
       {stream, 1});
  });
}

}  // namespace

void BenchSample(Bench& b) {
  if (!b.Wanted("sample")) return;
  for (const int rows : {1, 64, 256}) {
    Sample(b, "greedy", {}, rows, 3.0f);
    Sample(b, "temperature", {0.8f, 1.0f, 0.0f, 0, 1, 0}, rows, 3.0f);
    Sample(b, "top-k 50 top-p 0.9", {0.8f, 0.9f, 0.0f, 50, 1, 0}, rows, 3.0f);
    Sample(b, "top-p 0.9", {0.8f, 0.9f, 0.0f, 0, 1, 0}, rows, 3.0f);
  }
  Sample(b, "top-p 0.9 flat logits", {0.8f, 0.9f, 0.0f, 0, 1, 0}, 256, 0.1f);
}

}  // namespace fastllm::cuda_bench
