// What follows the model in a step: sampling on the device, tallies, logprobs, and what the host does in its place.
#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "runtime/runner/device_runner.h"
#include "runtime/runner/prompt_questions.h"
#include "runtime/sample/sample_rule.h"
#include "runtime/tensor/tensors.h"

namespace fastllm::runtime {
namespace {

constexpr int32_t kLogitSlab = 64;  // rows of logits that come to the host at once

}  // namespace

// Whether the ranks pick the tokens from their parts of the logits.
bool DeviceRunner::Picks(const StagedStep& step) const {
  return step.greedy && step.shape.samples > 0 && net_.model->CanPick(step.shape.samples);
}

// picked: the hidden states of the rows that sample.
void DeviceRunner::EnqueueTokens(const StagedStep& step, const at::Tensor& picked) {
  if (Picks(step)) {
    net_.model->Pick(context_, picked, DataOf<int32_t>(buffers_.sampled));
  } else {
    EnqueueSampling(step, net_.model->Logits(context_, picked));
  }
}

void DeviceRunner::EnqueueSampling(const StagedStep& step, const at::Tensor& logits) {
  const StageLayout& o = step.layout;
  ops::SampleParams p;
  p.logits = DataOf<const float>(logits);
  p.tokens = DataOf<int32_t>(buffers_.sampled);
  p.rows = Staged<ops::SampleRow>(o.rules);
  p.ban_ids = Staged<int32_t>(step.ban_ids);
  p.ban_start = step.num_bans == 0 ? nullptr : Staged<int32_t>(o.ban_start);
  p.logits_stride = logits.stride(0);
  p.num_rows = step.shape.samples;
  p.vocab = net_.config.vocab_size;
  if (step.penalties || step.num_biases > 0) {
    p.penalties = Staged<ops::PenaltyRow>(o.penalties);
    p.biases = Staged<ops::TokenBias>(step.biases);
    p.counts = tallies_ == nullptr ? nullptr : tallies_->counts();
  }
  ops_.sample(p, context_.op);
  if (step.logprobs) EnqueueLogprobs(step, logits);
}

// Of the tokens just drawn, from the logits as the model left them: sampling does not change them.
void DeviceRunner::EnqueueLogprobs(const StagedStep& step, const at::Tensor& logits) {
  const int32_t rows = step.shape.samples;
  auto* const out = static_cast<float*>(buffers_.logprobs.data_ptr());
  ops::LogprobsParams p;
  p.logits = DataOf<const float>(logits);
  p.rows = Staged<ops::LogprobsRow>(step.layout.asks);
  p.token_logprobs = out;
  p.token_ranks = reinterpret_cast<int32_t*>(out + rows);
  p.top_ids = reinterpret_cast<int32_t*>(out + 2 * rows);
  p.top_logprobs = out + int64_t{rows} * (2 + kMostDeviceTops);
  p.logits_stride = logits.stride(0);
  p.top_stride = kMostDeviceTops;
  p.num_rows = rows;
  p.vocab = net_.config.vocab_size;
  p.tokens = DataOf<const int32_t>(buffers_.sampled);
  ops_.logprobs(p, context_.op);
}

// Brings the logprobs over behind the step, and writes down what was asked of each row.
void DeviceRunner::FetchLogprobs(Slot& slot, const StagedStep& step) {
  const int32_t rows = step.shape.samples;
  device_.Copy(slot.logprobs, buffers_.logprobs.const_data_ptr(), static_cast<size_t>(LogprobBytes(rows)),
               context_.op.stream);
  const auto* const out = reinterpret_cast<const float*>(slot.logprobs);
  const auto* const asks = reinterpret_cast<const ops::LogprobsRow*>(slot.stage + step.layout.asks);
  DrawnLogprobs& d = slot.drawn;
  d.num_top.resize(rows);
  for (int32_t i = 0; i < rows; ++i) d.num_top[i] = asks[i].token == ops::kDrawnToken ? asks[i].top_k : -1;
  d.token = out;
  d.ranks = reinterpret_cast<const int32_t*>(out + rows);
  d.top_ids = reinterpret_cast<const int32_t*>(out + 2 * rows);
  d.top = out + int64_t{rows} * (2 + kMostDeviceTops);
  d.stride = kMostDeviceTops;
}

DeviceSampling DeviceRunner::Sampling() const { return {tallies_ != nullptr, ops_.logprobs != nullptr}; }

void DeviceRunner::EnqueueKeep(const StagedStep& step) {
  ops::KeepTokensParams k;
  k.last_tokens = DataOf<int32_t>(buffers_.last_tokens);
  k.tokens = DataOf<const int32_t>(buffers_.sampled);
  k.slots = Staged<int32_t>(step.layout.keep_slots);
  k.num_rows = step.shape.samples;
  k.num_slots = batch_.num_slots();
  if (step.penalties) {
    k.counts = tallies_->counts();
    k.count_rows = Staged<int32_t>(step.layout.count_rows);
    k.num_count_rows = batch_.num_slots();
    k.vocab = net_.config.vocab_size;
  }
  ops_.keep(k, context_.op);
}

// The rows of `from` in the order that is asked for, on the host.
at::Tensor DeviceRunner::ToHost(const at::Tensor& from, const std::vector<int32_t>& order) {
  const int64_t width = from.size(1);
  const at::Tensor host = Empty({static_cast<int64_t>(order.size()), width}, at::TensorOptions().dtype(at::kFloat));
  for (size_t i = 0; i < order.size(); ++i) {
    device_.Copy(DataOf<float>(host) + static_cast<int64_t>(i) * width, DataOf<const float>(from) + order[i] * width,
                 static_cast<size_t>(width) * sizeof(float), context_.op.stream);
  }
  device_.Synchronize(context_.op.stream);
  return host;
}

// For rows that ask for what the device's sampler does not do: their logits come over, and their tokens go back to
// where the others' are.
void DeviceRunner::SampleOnHost(Slot& slot, const StagedStep& step, const at::Tensor& logits, StepResult* result) {
  const std::vector<int32_t>& host_rows = step.host_rows;
  host_sampler_->Clear();
  int32_t sample = 0;
  size_t next = 0;
  for (const BatchRow& row : batch_.rows()) {
    if (!row.sample) continue;
    if (next == host_rows.size() || host_rows[next] != sample++) continue;
    const RunnerSequence& s = *row.sequence;
    host_sampler_->Add({row.id, &s.sampling, &s.tokens, s.num_prompt_tokens, s.logits_state.get()});
    ++next;
  }
  std::vector<int32_t> order = host_sampler_->Arrange();
  for (int32_t& i : order) i = host_rows[i];
  const std::vector<int32_t>& tokens = host_sampler_->Run(ToHost(logits, order), {nullptr, context_.op.num_threads});
  for (size_t i = 0; i < host_rows.size(); ++i) {
    slot.tokens[host_rows[i]] = tokens[i];
    SampledRow& row = result->rows[host_rows[i]];
    row.error = host_sampler_->error(i);
    if (host_sampler_->has_logprobs(i)) row.logprobs.push_back(std::move(host_sampler_->logprobs(i)));
  }
  // Neighbours travel together.
  for (size_t i = 0, end = 0; i < host_rows.size(); i = end) {
    while (end < host_rows.size() && host_rows[end] - host_rows[i] == static_cast<int32_t>(end - i)) ++end;
    device_.Copy(DataOf<int32_t>(buffers_.sampled) + host_rows[i], slot.tokens + host_rows[i],
                 (end - i) * sizeof(int32_t), context_.op.stream);
  }
}

void DeviceRunner::FinishOnHost(Slot& slot, const StagedStep& step, StepResult* result) {
  void* const stream = context_.op.stream;
  const at::Tensor hidden = EnqueueModel(step);
  if (step.prompt_logprobs) ReadPromptLogprobs(hidden, result);
  const auto samples = static_cast<size_t>(step.shape.samples);
  if (samples > 0) {
    const at::Tensor logits = GatherLogits(hidden, Staged<int32_t>(step.layout.logit_rows), step.shape.samples);
    if (step.host_rows.size() < samples) EnqueueSampling(step, logits);
    if (!step.host_rows.empty()) SampleOnHost(slot, step, logits, result);
    EnqueueKeep(step);
    device_.Copy(slot.tokens, buffers_.sampled.const_data_ptr(), samples * sizeof(int32_t), stream);
    if (step.logprobs) FetchLogprobs(slot, step);
    device_.Synchronize(stream);
  }
  device_.RecordEvent(slot.event, stream);
  const std::vector<int32_t> tokens(slot.tokens, slot.tokens + samples);
  for (size_t i = 0; i < samples; ++i) {
    result->rows[i].tokens.assign(1, tokens[i]);
    if (!step.logprobs || slot.drawn.num_top[i] < 0 || tokens[i] < 0) continue;
    result->rows[i].logprobs.push_back(slot.drawn.Of(i, tokens[i]));
  }
  batch_.Commit(tokens);
}

// When a row of the batch needs tallies: makes them, if there is room, and brings them up to date.
void DeviceRunner::PrepareTallies(int buffer) {
  const auto& rows = batch_.rows();
  const bool needed = std::any_of(rows.begin(), rows.end(),
                                  [](const BatchRow& r) { return r.sample && HasPenalties(r.sequence->sampling); });
  if (!needed || tallies_refused_) return;
  if (tallies_ == nullptr) {
    tallies_ = TokenTallies::Create(device_, ops_.count, batch_, net_.placement);
    tallies_refused_ = tallies_ == nullptr;
    if (tallies_refused_) return;
  }
  tallies_->Update(batch_, Sampling(), buffer, context_.op);
}

// A few rows at a time, whatever the length of the prompts. The ids have been read by then; their buffer takes the
// numbers of the rows.
void DeviceRunner::ReadPromptLogprobs(const at::Tensor& hidden, StepResult* result) {
  const PromptQuestions asked(batch_.rows());
  const auto total = static_cast<int32_t>(asked.questions().size());
  if (total == 0) return;
  std::vector<PositionLogprobs> answers(total);
  ForLogits(hidden, asked.token_rows(), [&](int32_t first, const at::Tensor& logits) {
    host_sampler_->reader().Read(DataOf<const float>(logits), logits.stride(0),
                                 std::span(asked.questions()).subspan(first, logits.size(0)),
                                 {nullptr, context_.op.num_threads}, answers.data() + first);
  });
  result->prompt_logprobs = asked.Share(std::move(answers));
}

// use(first, logits of rows [first, ...) on the host), a few rows at a time.
void DeviceRunner::ForLogits(const at::Tensor& hidden, const std::vector<int32_t>& rows,
                             const std::function<void(int32_t, const at::Tensor&)>& use) {
  device_.Synchronize(context_.op.stream);
  int32_t* const numbers = DataOf<int32_t>(buffers_.ids);
  device_.Copy(numbers, rows.data(), rows.size() * sizeof(int32_t), context_.op.stream);
  const auto total = static_cast<int32_t>(rows.size());
  const int32_t slab = std::min(batch_.limits().max_num_seqs, kLogitSlab);  // what the dry step made room for
  std::vector<int32_t> order(slab);
  std::iota(order.begin(), order.end(), 0);
  for (int32_t first = 0; first < total; first += slab) {
    order.resize(std::min(slab, total - first));
    use(first, ToHost(GatherLogits(hidden, numbers + first, static_cast<int32_t>(order.size())), order));
  }
}

}  // namespace fastllm::runtime
