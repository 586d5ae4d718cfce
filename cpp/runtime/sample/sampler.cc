#include "runtime/sample/sampler.h"

#include "core/base/check.h"

namespace fastllm::runtime {

Result<Sampler> Sampler::Create(const ops::OpTable& table, ops::Device device, int32_t vocab_size, int32_t max_rows) {
  Sampler s;
  FASTLLM_ASSIGN_OR_RETURN(s.fn_, table.Resolve<ops::SampleFn>({ops::OpId::kSample, device, ops::DType::kF32}));
  s.vocab_size_ = vocab_size;
  s.rows_.reserve(max_rows);
  s.ban_start_.reserve(max_rows + 1);
  s.tokens_.reserve(max_rows);
  s.Clear();
  return s;
}

void Sampler::Clear() {
  rows_.clear();
  ban_ids_.clear();
  ban_start_.assign(1, 0);
}

void Sampler::Add(const SamplingSpec& spec, int32_t output_index) {
  ops::SampleRow row;
  row.temperature = spec.temperature;
  row.top_p = spec.top_p;
  row.min_p = spec.min_p;
  row.top_k = spec.top_k;
  row.seed = spec.seed;
  row.counter = static_cast<uint64_t>(output_index);
  rows_.push_back(row);
  if (output_index < spec.min_tokens) {
    ban_ids_.insert(ban_ids_.end(), spec.banned_until_min.begin(), spec.banned_until_min.end());
  }
  ban_start_.push_back(static_cast<int32_t>(ban_ids_.size()));
}

const std::vector<int32_t>& Sampler::Run(const at::Tensor& logits, const ops::OpContext& op) {
  FASTLLM_CHECK(logits.size(0) == static_cast<int64_t>(rows_.size()) && logits.size(1) == vocab_size_,
                "logits must have one row of the vocabulary for each sampled row");
  tokens_.resize(rows_.size());
  ops::SampleParams p;
  p.logits = logits.const_data_ptr<float>();
  p.tokens = tokens_.data();
  p.rows = rows_.data();
  p.ban_ids = ban_ids_.data();
  p.ban_start = ban_ids_.empty() ? nullptr : ban_start_.data();
  p.logits_stride = logits.stride(0);
  p.num_rows = static_cast<int32_t>(rows_.size());
  p.vocab = vocab_size_;
  fn_(p, op);
  return tokens_;
}

}  // namespace fastllm::runtime
