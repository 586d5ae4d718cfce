#include "runtime/sample/sampler.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/base/check.h"
#include "runtime/tensor/tensors.h"

namespace fastllm::runtime {
namespace {

constexpr int32_t kCopyRows = 16;

}  // namespace

Result<Sampler> Sampler::Create(const ops::OpTable& table, ops::Device device, int32_t vocab_size, int32_t max_rows,
                                LogprobsMode mode, std::vector<std::shared_ptr<LogitsProcessor>> processors) {
  Sampler s;
  const auto key = [device](ops::OpId op) { return ops::OpQuery{op, device, ops::DType::kF32}; };
  FASTLLM_ASSIGN_OR_RETURN(s.ops_.sample, table.Resolve<ops::SampleFn>(key(ops::OpId::kSample)));
  FASTLLM_ASSIGN_OR_RETURN(s.ops_.process, table.Resolve<ops::ProcessLogitsFn>(key(ops::OpId::kProcessLogits)));
  FASTLLM_ASSIGN_OR_RETURN(s.reader_, LogprobReader::Create(table, device, vocab_size));
  s.vocab_size_ = vocab_size;
  s.mode_ = mode;
  s.host_ = HostProcessors(std::move(processors));
  s.rows_.reserve(max_rows);
  s.batch_.order.reserve(max_rows);
  s.batch_.sample.reserve(max_rows);
  s.batch_.logits.reserve(max_rows);
  s.batch_.ban_start.reserve(max_rows + 1);
  s.batch_.tokens.reserve(max_rows);
  s.tokens_.reserve(max_rows);
  s.Clear();
  return s;
}

void Sampler::Clear() {
  rows_.clear();
  host_.Clear();
  batch_.order.clear();
  batch_.num_silent = 0;
  batch_.num_read = 0;
  batch_.num_in_place = 0;
  batch_.any_processed = false;
  batch_.sample.clear();
  batch_.logits.clear();
  batch_.ban_ids.clear();
  batch_.ban_start.assign(1, 0);
  batch_.questions.clear();
  logprobs_.clear();
}

// Processed logprobs are of what is sampled from, so they need no copy.
bool Sampler::NeedsCopy(const SamplerRow& row) const {
  return row.spec->logprobs && row.spec->logits && !row.spec->processors && !IsProcessed(mode_);
}

bool Sampler::NeedsRaw(const SamplerRow& row) const {
  return row.spec->logprobs && row.spec->processors && !IsProcessed(mode_);
}

const std::vector<int32_t>& Sampler::Arrange() {
  const auto take = [this](auto&& wanted) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (wanted(rows_[i])) batch_.order.push_back(static_cast<int32_t>(i));
    }
    return static_cast<int32_t>(batch_.order.size());
  };
  batch_.num_silent = take([](const SamplerRow& r) { return !r.spec->logprobs; });
  batch_.num_read = take([this](const SamplerRow& r) { return r.spec->logprobs && !NeedsRaw(r) && !NeedsCopy(r); });
  batch_.num_in_place = take([this](const SamplerRow& r) { return NeedsRaw(r); });
  take([this](const SamplerRow& r) { return NeedsCopy(r); });
  place_of_.resize(rows_.size());
  for (size_t place = 0; place < batch_.order.size(); ++place) {
    const SamplerRow& row = rows_[batch_.order[place]];
    place_of_[batch_.order[place]] = static_cast<int32_t>(place);
    Describe(row);
    const auto tokens = std::span<const TokenId>(*row.tokens);
    host_.Add(static_cast<int32_t>(place), row.id, *row.spec, tokens.first(row.num_prompt_tokens),
              tokens.subspan(row.num_prompt_tokens));
  }
  return batch_.order;
}

void Sampler::Describe(const SamplerRow& in) {
  const SamplingSpec& spec = *in.spec;
  const int32_t output_index = in.num_output_tokens();
  ops::SampleRow row;
  const bool scaled = host_.IsScaled(spec);  // its logits are divided before they come to the op
  row.temperature = scaled ? 1.0f : spec.temperature;
  row.top_p = spec.top_p;
  row.min_p = spec.min_p;
  row.top_k = spec.top_k;
  row.seed = spec.seed;
  row.counter = static_cast<uint64_t>(output_index);
  row.typical_p = spec.typical_p;
  row.top_n_sigma = spec.top_n_sigma;
  row.xtc_probability = spec.xtc_probability;
  row.xtc_threshold = spec.xtc_threshold;
  row.write_filtered = spec.logprobs && IsProcessed(mode_);
  batch_.sample.push_back(row);
  if (output_index < spec.min_tokens) {
    batch_.ban_ids.insert(batch_.ban_ids.end(), spec.banned_until_min.begin(), spec.banned_until_min.end());
  }
  batch_.ban_start.push_back(static_cast<int32_t>(batch_.ban_ids.size()));
  ops::LogitsRow logits;
  if (spec.logits) {
    logits = in.logits_state->Row(*spec.logits, *in.tokens, in.num_prompt_tokens);
    batch_.any_processed = true;
  }
  batch_.logits.push_back(logits);
  if (!spec.logprobs) return;
  LogprobQuestion q;
  q.num_top = spec.logprobs->num_top;
  q.ids = spec.logprobs->ids.empty() ? nullptr : &spec.logprobs->ids;
  const bool divided = IsProcessed(mode_) && !scaled && spec.temperature >= ops::kGreedyTemperature;
  q.temperature = divided ? spec.temperature : 1.0f;
  q.as_logits = IsLogits(mode_);
  batch_.questions.push_back(q);
}

std::vector<int32_t>* Sampler::GreedyTokens() {
  const bool silent = std::cmp_equal(batch_.num_silent, rows_.size());
  if (!silent || batch_.any_processed || !batch_.ban_ids.empty() || host_.has_raw() || host_.has_scaled()) {
    return nullptr;
  }
  for (const ops::SampleRow& row : batch_.sample) {
    if (row.temperature >= ops::kGreedyTemperature) return nullptr;
  }
  tokens_.resize(rows_.size());
  return &tokens_;
}

const std::vector<int32_t>& Sampler::Run(const at::Tensor& logits, const ops::OpContext& op) {
  const auto num_rows = static_cast<int32_t>(rows_.size());
  FASTLLM_CHECK(logits.size(0) == num_rows && logits.size(1) == vocab_size_,
                "logits must have one row of the vocabulary for each sampled row");
  FASTLLM_CHECK(std::cmp_equal(batch_.order.size(), num_rows), "Arrange() comes between Add() and Run()");
  batch_.tokens.resize(num_rows);
  batch_.answers.assign(batch_.questions.size(), {});
  if (batch_.num_in_place > 0) RunInPlace(logits, op);
  if (batch_.num_in_place < num_rows) RunCopied(logits, op);

  tokens_.resize(num_rows);
  logprobs_.assign(batch_.questions.empty() ? 0 : num_rows, {});
  for (int32_t i = 0; i < num_rows; ++i) tokens_[batch_.order[i]] = host_.error(i).empty() ? batch_.tokens[i] : -1;
  for (int32_t i = batch_.num_silent; i < num_rows; ++i) {
    logprobs_[batch_.order[i]] = std::move(batch_.answers[i - batch_.num_silent]);
  }
  return tokens_;
}

void Sampler::RunInPlace(const at::Tensor& logits, const ops::OpContext& op) {
  float* const x = DataOf<float>(logits);
  const int64_t stride = logits.stride(0);
  const int32_t num_rows = batch_.num_in_place;
  const int32_t num_raw = num_rows - batch_.num_read;
  at::Tensor raw;  // of the rows whose raw logits are wanted after the host's processors have changed them
  if (num_raw > 0) {
    raw = Empty({num_raw, vocab_size_}, logits.options());
    for (int32_t i = 0; i < num_raw; ++i) {
      std::copy_n(x + (batch_.num_read + i) * stride, vocab_size_, DataOf<float>(raw) + i * raw.stride(0));
    }
  }
  if (host_.has_raw()) host_.RunRaw(x, stride, vocab_size_);
  if (batch_.any_processed) {
    ops::ProcessLogitsParams p;
    p.logits = x;
    p.rows = batch_.logits.data();
    p.logits_stride = stride;
    p.num_rows = num_rows;
    p.vocab = vocab_size_;
    ops_.process(p, op);
  }
  if (host_.has_scaled()) {
    for (int32_t i = 0; i < num_rows; ++i) {
      const SamplingSpec& spec = *rows_[batch_.order[i]].spec;
      if (!host_.IsScaled(spec)) continue;
      for (float& logit : std::span(x + i * stride, vocab_size_)) logit /= spec.temperature;
    }
    host_.RunScaled(x, stride, vocab_size_);
  }
  Draw(x, stride, 0, num_rows, op);
  const int32_t num_silent = batch_.num_silent;
  ReadLogprobs(x + num_silent * stride, stride, num_silent, batch_.num_read - num_silent, op);
  if (num_raw > 0) ReadLogprobs(DataOf<const float>(raw), raw.stride(0), batch_.num_read, num_raw, op);
}

void Sampler::Draw(float* x, int64_t stride, int32_t first, int32_t count, const ops::OpContext& op) {
  ops::SampleParams p;
  p.logits = x;
  p.tokens = batch_.tokens.data() + first;
  p.rows = batch_.sample.data() + first;
  p.ban_ids = batch_.ban_ids.data();
  p.ban_start = batch_.ban_ids.empty() ? nullptr : batch_.ban_start.data() + first;
  p.logits_stride = stride;
  p.num_rows = count;
  p.vocab = vocab_size_;
  p.filtered = x;
  ops_.sample(p, op);
}

void Sampler::ReadLogprobs(const float* x, int64_t stride, int32_t first, int32_t count, const ops::OpContext& op) {
  if (count == 0) return;
  const int32_t at = first - batch_.num_silent;
  for (int32_t i = 0; i < count; ++i) batch_.questions[at + i].token = batch_.tokens[first + i];
  reader_.Read(x, stride, std::span(batch_.questions).subspan(at, count), op, batch_.answers.data() + at);
}

void Sampler::RunCopied(const at::Tensor& logits, const ops::OpContext& op) {
  if (!copy_.defined()) copy_ = Empty({kCopyRows, vocab_size_}, logits.options());
  const int64_t stride = logits.stride(0);
  const auto num_rows = static_cast<int32_t>(rows_.size());
  for (int32_t first = batch_.num_in_place; first < num_rows; first += kCopyRows) {
    const float* const raw = DataOf<const float>(logits) + first * stride;
    ops::ProcessLogitsParams p;
    p.logits = DataOf<float>(copy_);
    p.rows = batch_.logits.data() + first;
    p.logits_stride = copy_.stride(0);
    p.num_rows = std::min(kCopyRows, num_rows - first);
    p.vocab = vocab_size_;
    p.from = raw;
    p.from_stride = stride;
    ops_.process(p, op);
    Draw(DataOf<float>(copy_), copy_.stride(0), first, p.num_rows, op);
    ReadLogprobs(raw, stride, first, p.num_rows, op);
  }
}

}  // namespace fastllm::runtime
