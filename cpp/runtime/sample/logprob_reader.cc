#include "runtime/sample/logprob_reader.h"

#include <algorithm>

namespace fastllm::runtime {
namespace {

constexpr int64_t kMostTops = 1 << 18;  // entries of one group's lists of top tokens: 2 MiB

bool Has(const PositionLogprobs& entries, TokenId id) {
  return std::ranges::any_of(entries, [id](const TokenLogprob& e) { return e.token_id == id; });
}

}  // namespace

Result<LogprobReader> LogprobReader::Create(const ops::OpTable& table, ops::Device device, int32_t vocab_size) {
  LogprobReader r;
  FASTLLM_ASSIGN_OR_RETURN(r.fn_, table.Resolve<ops::LogprobsFn>({ops::OpId::kLogprobs, device, ops::DType::kF32}));
  r.vocab_size_ = vocab_size;
  return r;
}

int32_t LogprobReader::NumTop(const LogprobQuestion& q) const {
  return q.num_top < 0 ? vocab_size_ : std::min(q.num_top, vocab_size_);
}

void LogprobReader::Read(const float* logits, int64_t stride, std::span<const LogprobQuestion> questions,
                         const ops::OpContext& op, PositionLogprobs* answers) {
  for (size_t first = 0; first < questions.size();) {
    size_t count = 0;
    for (int64_t widest = 0; first + count < questions.size(); ++count) {
      widest = std::max<int64_t>(widest, NumTop(questions[first + count]));
      if (count > 0 && widest * static_cast<int64_t>(count + 1) > kMostTops) break;
    }
    ReadGroup(logits + static_cast<int64_t>(first) * stride, stride, questions.subspan(first, count), op,
              answers + first);
    first += count;
  }
}

void LogprobReader::ReadGroup(const float* logits, int64_t stride, std::span<const LogprobQuestion> questions,
                              const ops::OpContext& op, PositionLogprobs* answers) {
  const size_t n = questions.size();
  size_t num_ids = 0;
  top_stride_ = 0;
  for (const LogprobQuestion& q : questions) {
    top_stride_ = std::max(top_stride_, NumTop(q));
    if (q.ids != nullptr) num_ids += q.ids->size();
  }
  rows_.assign(n, {});
  token_logprobs_.resize(n);
  token_ranks_.resize(n);
  top_ids_.resize(n * top_stride_);
  top_logprobs_.resize(n * top_stride_);
  id_logprobs_.resize(num_ids);
  float* next_id = id_logprobs_.data();
  for (size_t i = 0; i < n; ++i) {
    const LogprobQuestion& q = questions[i];
    ops::LogprobsRow& row = rows_[i];
    if (q.token < 0) continue;
    row.token = q.token;
    row.temperature = q.temperature;
    row.top_k = NumTop(q);
    if (q.ids == nullptr) continue;
    row.ids = {q.ids->data(), static_cast<int32_t>(q.ids->size())};
    row.id_logprobs = next_id;
    next_id += q.ids->size();
  }
  ops::LogprobsParams p;
  p.logits = logits;
  p.rows = rows_.data();
  p.token_logprobs = token_logprobs_.data();
  p.token_ranks = token_ranks_.data();
  p.top_ids = top_ids_.data();
  p.top_logprobs = top_logprobs_.data();
  p.logits_stride = stride;
  p.top_stride = top_stride_;
  p.num_rows = static_cast<int32_t>(n);
  p.vocab = vocab_size_;
  fn_(p, op);
  for (size_t i = 0; i < n; ++i) {
    if (questions[i].token >= 0) answers[i] = Answer(questions[i], logits + static_cast<int64_t>(i) * stride, i);
  }
}

PositionLogprobs LogprobReader::Answer(const LogprobQuestion& q, const float* row, size_t index) const {
  PositionLogprobs entries;
  const ops::LogprobsRow& asked = rows_[index];
  entries.reserve(1 + asked.top_k + asked.ids.size);
  entries.push_back({q.token, token_logprobs_[index], token_ranks_[index]});
  const size_t tops = index * top_stride_;
  for (int32_t k = 0; k < asked.top_k; ++k) {
    const int32_t id = top_ids_[tops + k];
    if (id >= 0 && id != q.token) entries.push_back({id, top_logprobs_[tops + k], k + 1});
  }
  const bool all = asked.top_k >= vocab_size_;
  for (int32_t k = 0; k < asked.ids.size && !all; ++k) {
    if (!Has(entries, asked.ids.data[k])) entries.push_back({asked.ids.data[k], asked.id_logprobs[k], 0});
  }
  if (!q.as_logits) return entries;
  for (TokenLogprob& e : entries) e.logprob = row[e.token_id] / q.temperature;
  return entries;
}

}  // namespace fastllm::runtime
