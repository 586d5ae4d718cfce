#include "runtime/runner/device_stage.h"

#include <algorithm>

#include "core/base/check.h"
#include "ops/contract/logprobs.h"

namespace fastllm::runtime {
namespace {

constexpr int64_t kAlignment = 64;

template <typename T>
T* At(char* base, int64_t offset) {
  return reinterpret_cast<T*>(base + offset);
}

// One row's tokens, positions and slots from `token` on.
void FillTokens(const BatchRow& row, const BatchLimits& l, const StageLayout& o, int32_t token, char* host) {
  const RunnerSequence& s = *row.sequence;
  int64_t* slots = At<int64_t>(host, o.slot_mapping) + token;
  int32_t* planned = At<int32_t>(host, o.planned) + token;
  int32_t* positions = At<int32_t>(host, o.positions) + token;
  for (int32_t i = 0; i < row.num_tokens; ++i) {
    const int32_t position = s.num_computed_tokens + i;
    const TokenId id = s.tokens[position];
    planned[i] = id >= 0 ? id : -1 - s.slot;  // sampled by a step whose result has not come back
    positions[i] = position;
    slots[i] = s.SlotOf(position, l.block_size);
  }
}

// The bans and biases of all rows.
struct Lists {
  std::vector<int32_t> bans;
  std::vector<ops::TokenBias> biases;
};

// How the next token of a sequence is drawn, as row `sample`. What the host does in its place is a greedy row here.
void FillSampling(const RunnerSequence& s, const StageLayout& o, const DeviceSampling& device, int32_t sample,
                  char* host, Lists& lists, StagedStep& step) {
  const SamplingSpec& spec = s.sampling;
  const int32_t index = s.num_output_tokens();
  ops::SampleRow& rule = At<ops::SampleRow>(host, o.rules)[sample];
  ops::PenaltyRow& penalty = At<ops::PenaltyRow>(host, o.penalties)[sample];
  ops::LogprobsRow& ask = At<ops::LogprobsRow>(host, o.asks)[sample];
  rule = {};
  penalty = {};
  ask = {};
  At<int32_t>(host, o.count_rows)[sample] = -1;
  step.greedy &=
      spec.temperature < ops::kGreedyTemperature && !spec.logprobs && !spec.logits && index >= spec.min_tokens;
  if (!DeviceCanSample(spec, device)) {
    step.greedy = false;
    step.host_rows.push_back(sample);
    return;
  }
  rule = SampleRule(spec, index);
  penalty = PenaltyRule(spec, s.slot, static_cast<int32_t>(lists.biases.size()));
  At<int32_t>(host, o.count_rows)[sample] = penalty.count_row;
  step.penalties |= penalty.count_row >= 0;
  if (spec.logprobs) {
    ask.token = ops::kDrawnToken;
    ask.top_k = spec.logprobs->num_top;
    step.logprobs = true;
  }
  if (spec.logits) {
    for (const LogitBias& b : spec.logits->logit_bias) lists.biases.push_back({b.id, b.bias});
  }
  if (index < spec.min_tokens) {
    lists.bans.insert(lists.bans.end(), spec.banned_until_min.begin(), spec.banned_until_min.end());
  }
}

void FillPadding(const StageShape& shape, const StageLayout& o, int32_t token, int32_t seq, int32_t sample,
                 char* host) {
  int32_t left = shape.tokens - token;
  for (; token < shape.tokens; ++token) {
    At<int64_t>(host, o.slot_mapping)[token] = -1;
    At<int32_t>(host, o.planned)[token] = 0;
    At<int32_t>(host, o.positions)[token] = 0;
  }
  for (; seq < shape.seqs; ++seq) {
    const int32_t rows = seq + 1 == shape.seqs ? left : std::min(left, 1);
    At<int32_t>(host, o.query_start)[seq + 1] = At<int32_t>(host, o.query_start)[seq] + rows;
    left -= rows;
    At<int32_t>(host, o.seq_len)[seq] = 0;
  }
  for (; sample < shape.samples; ++sample) {
    At<int32_t>(host, o.logit_rows)[sample] = sample;
    At<int32_t>(host, o.keep_slots)[sample] = -1;
    At<ops::SampleRow>(host, o.rules)[sample] = ops::SampleRow{};
    At<ops::PenaltyRow>(host, o.penalties)[sample] = ops::PenaltyRow{};
    At<int32_t>(host, o.count_rows)[sample] = -1;
    At<ops::LogprobsRow>(host, o.asks)[sample] = ops::LogprobsRow{};
    At<int32_t>(host, o.ban_start)[sample + 1] = At<int32_t>(host, o.ban_start)[sample];
  }
}

// The packed block tables; returns the width. Padding rows have no entries: zeros, which nothing reads.
int32_t FillTables(const BatchState& batch, const StageShape& shape, const StageLayout& o, char* host) {
  const int32_t block = batch.limits().block_size;
  const auto used = [block](const BatchRow& r) {
    return (r.sequence->num_computed_tokens + r.num_tokens + block - 1) / block;
  };
  int32_t width = 1;
  for (const BatchRow& row : batch.rows()) width = std::max(width, used(row));
  int32_t* table = At<int32_t>(host, o.table);
  for (const BatchRow& row : batch.rows()) {
    int32_t* end = std::copy_n(row.sequence->blocks.data(), used(row), table);
    std::fill(end, table + width, 0);
    table += width;
  }
  std::fill(table, At<int32_t>(host, o.table) + int64_t{shape.seqs} * width, 0);
  *At<int32_t>(host, o.table_width) = width;
  return width;
}

}  // namespace

StageLayout StageLayout::Of(const StageShape& s) {
  StageLayout o;
  int64_t at = 0;
  const auto take = [&at](int64_t count, int64_t size) {
    const int64_t begin = at;
    at = (at + count * size + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  };
  o.slot_mapping = take(s.tokens, sizeof(int64_t));
  o.rules = take(s.samples, sizeof(ops::SampleRow));
  o.penalties = take(s.samples, sizeof(ops::PenaltyRow));
  o.count_rows = take(s.samples, sizeof(int32_t));
  o.asks = take(s.samples, sizeof(ops::LogprobsRow));
  o.planned = take(s.tokens, sizeof(int32_t));
  o.positions = take(s.tokens, sizeof(int32_t));
  o.query_start = take(s.seqs + 1, sizeof(int32_t));
  o.seq_len = take(s.seqs, sizeof(int32_t));
  o.logit_rows = take(s.samples, sizeof(int32_t));
  o.keep_slots = take(s.samples, sizeof(int32_t));
  o.ban_start = take(s.samples + 1, sizeof(int32_t));
  o.table_width = take(1, sizeof(int32_t));
  o.record = take(s.record_ints, sizeof(int32_t));
  o.table = at;
  return o;
}

int64_t MaxStageBytes(const BatchLimits& l, int64_t record_ints) {
  const StageShape most{l.max_num_batched_tokens, l.max_num_seqs + 1, l.max_num_seqs, record_ints};
  const int64_t lists = static_cast<int64_t>(kMostListed * sizeof(ops::TokenBias));
  const int64_t table = most.seqs * (l.max_blocks_per_seq() * static_cast<int64_t>(sizeof(int32_t)));
  return StageLayout::Of(most).table + table + l.max_num_seqs * lists;
}

StagedStep FillStage(const BatchState& batch, const StageShape& shape, const DeviceSampling& device, char* host,
                     int64_t capacity) {
  StagedStep step;
  step.shape = shape;
  step.layout = StageLayout::Of(shape);
  const StageLayout& o = step.layout;
  Lists lists;
  int32_t token = 0, seq = 0, sample = 0;
  At<int32_t>(host, o.query_start)[0] = 0;
  At<int32_t>(host, o.ban_start)[0] = 0;
  for (const BatchRow& row : batch.rows()) {
    step.prompt_logprobs |= row.sequence->wants_prompt_logprobs;
    FillTokens(row, batch.limits(), o, token, host);
    token += row.num_tokens;
    At<int32_t>(host, o.seq_len)[seq] = row.sequence->num_computed_tokens + row.num_tokens;
    At<int32_t>(host, o.query_start)[++seq] = token;
    if (!row.sample) continue;
    At<int32_t>(host, o.logit_rows)[sample] = token - 1;
    At<int32_t>(host, o.keep_slots)[sample] = row.sequence->slot;
    FillSampling(*row.sequence, o, device, sample, host, lists, step);
    At<int32_t>(host, o.ban_start)[++sample] = static_cast<int32_t>(lists.bans.size());
  }
  FillPadding(shape, o, token, seq, sample, host);
  const int32_t width = FillTables(batch, shape, o, host);
  step.ban_ids = o.table + int64_t{shape.seqs} * width * static_cast<int64_t>(sizeof(int32_t));
  step.biases = step.ban_ids + static_cast<int64_t>(lists.bans.size() * sizeof(int32_t));
  step.bytes = step.biases + static_cast<int64_t>(lists.biases.size() * sizeof(ops::TokenBias));
  FASTLLM_CHECK(step.bytes <= capacity, "a step larger than its stage");
  step.num_bans = static_cast<int32_t>(lists.bans.size());
  step.num_biases = static_cast<int32_t>(lists.biases.size());
  std::copy(lists.bans.begin(), lists.bans.end(), At<int32_t>(host, step.ban_ids));
  std::copy(lists.biases.begin(), lists.biases.end(), At<ops::TokenBias>(host, step.biases));
  return step;
}

StagedStep FillDryStage(const BatchLimits& l, const StageShape& shape, char* host) {
  StagedStep step;
  step.shape = shape;
  step.layout = StageLayout::Of(shape);
  const StageLayout& o = step.layout;
  At<int32_t>(host, o.query_start)[0] = 0;
  At<int32_t>(host, o.ban_start)[0] = 0;
  FillPadding({shape.tokens, 0, shape.samples, 0}, o, 0, 0, 0, host);
  int32_t width = 1;
  for (int32_t s = 0; s < shape.seqs; ++s) {
    const int32_t begin = static_cast<int32_t>(int64_t{shape.tokens} * s / shape.seqs);
    const int32_t end = static_cast<int32_t>(int64_t{shape.tokens} * (s + 1) / shape.seqs);
    At<int32_t>(host, o.query_start)[s + 1] = end;
    At<int32_t>(host, o.seq_len)[s] = end - begin;
    width = std::max(width, (end - begin + l.block_size - 1) / l.block_size);
  }
  FASTLLM_CHECK(width <= l.max_blocks_per_seq(), "a dry step past the context");
  std::fill_n(At<int32_t>(host, o.table), int64_t{shape.seqs} * width, 0);
  *At<int32_t>(host, o.table_width) = width;
  step.bytes = step.ban_ids = o.table + int64_t{shape.seqs} * width * static_cast<int64_t>(sizeof(int32_t));
  return step;
}

StagedStep FillEmptyStage(const StageShape& shape, char* host) {
  StagedStep step;
  step.shape = shape;
  step.layout = StageLayout::Of(shape);
  const StageLayout& o = step.layout;
  At<int32_t>(host, o.query_start)[0] = 0;
  At<int32_t>(host, o.ban_start)[0] = 0;
  FillPadding(shape, o, 0, 0, 0, host);
  std::fill_n(At<int32_t>(host, o.table), shape.seqs, 0);
  *At<int32_t>(host, o.table_width) = 1;
  step.bytes = step.ban_ids = o.table + shape.seqs * static_cast<int64_t>(sizeof(int32_t));
  return step;
}

}  // namespace fastllm::runtime
