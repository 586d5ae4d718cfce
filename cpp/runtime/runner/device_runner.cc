#include "runtime/runner/device_runner.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "runtime/nn/talk.h"
#include "runtime/runner/prompt_questions.h"
#include "runtime/runner/step_guard.h"

namespace fastllm::runtime {
namespace {

constexpr int32_t kLogitSlab = 64;  // rows of logits that come to the host at once

}  // namespace

ops::AttentionBound DeviceRunner::Bound(int32_t seqs, int32_t tokens) const {
  if (ops_.bound == nullptr) return {};
  const ModelConfig& c = net_.share.config;
  return ops_.bound({seqs, tokens, c.num_heads, c.num_kv_heads, c.head_dim, net_.placement.dtype});
}

// The slot whose step was launched longest ago; its copies have been read when its step is done.
DeviceRunner::Slot& DeviceRunner::NextSlot() {
  Slot& slot = ring_.slots[ring_.next];
  ring_.next = (ring_.next + 1) % kSlots;
  device_.WaitEvent(slot.event);
  return slot;
}

StageShape DeviceRunner::ExactShape() const {
  StageShape s;
  s.tokens = batch_.num_tokens();
  s.seqs = static_cast<int32_t>(batch_.rows().size());
  s.samples = static_cast<int32_t>(
      std::count_if(batch_.rows().begin(), batch_.rows().end(), [](const BatchRow& r) { return r.sample; }));
  s.record_ints = Bound(s.seqs, s.tokens).record_ints;
  return s;
}

ops::AttentionPlanSize DeviceRunner::PlanAttention(const StagedStep& step, char* host, int32_t decode_workers) const {
  if (ops_.plan == nullptr) return {};
  ops::AttentionPlanParams p;
  p.query_start = reinterpret_cast<const int32_t*>(host + step.layout.query_start);
  p.seq_len = reinterpret_cast<const int32_t*>(host + step.layout.seq_len);
  p.num_seqs = step.shape.seqs;
  p.num_q_heads = net_.share.config.num_heads;
  p.num_kv_heads = net_.share.config.num_kv_heads;
  p.head_dim = net_.share.config.head_dim;
  p.dtype = net_.placement.dtype;
  p.decode_workers = decode_workers;
  p.record = reinterpret_cast<int32_t*>(host + step.layout.record);
  p.record_capacity = step.shape.record_ints;
  return ops_.plan(p);
}

void DeviceRunner::SetInput(const StagedStep& step, const ops::AttentionPlanSize& plan) {
  const StageLayout& o = step.layout;
  StepInput& in = context_.input;
  in.ids = buffers_.ids.const_data_ptr<int32_t>();
  in.positions = Staged<int32_t>(o.positions);
  in.slot_mapping = Staged<int64_t>(o.slot_mapping);
  in.query_start = Staged<int32_t>(o.query_start);
  in.seq_len = Staged<int32_t>(o.seq_len);
  in.block_table = buffers_.block_table.const_data_ptr<int32_t>();
  in.num_tokens = step.shape.tokens;
  in.num_seqs = step.shape.seqs;
  in.max_blocks = batch_.limits().max_blocks_per_seq();
  AttentionStep& a = context_.attention;
  a.plan = ops_.plan == nullptr ? nullptr : Staged<int32_t>(o.record);
  a.decode_workers = plan.decode_workers;
  a.prefill_tiles = plan.prefill_tiles;
  a.workspace = buffers_.workspace.data_ptr();
  a.workspace_bytes = buffers_.workspace.numel();
}

// Where the communicators take what lies on the host. Each rank of a tensor group has all logits and draws the same
// tokens from them, so nothing else is exchanged about a step.
Status DeviceRunner::CompareWithRanks(uint64_t step_id, const StagedStep& step, const char* host) const {
  if (net_.ranks.topology.world() == 1 || net_.placement.device != ops::Device::kCpu) return Status::Ok();
  const StageLayout& o = step.layout;
  StepInput in = context_.input;
  in.ids = reinterpret_cast<const int32_t*>(host + o.planned);
  in.positions = reinterpret_cast<const int32_t*>(host + o.positions);
  in.slot_mapping = reinterpret_cast<const int64_t*>(host + o.slot_mapping);
  in.query_start = reinterpret_cast<const int32_t*>(host + o.query_start);
  in.seq_len = reinterpret_cast<const int32_t*>(host + o.seq_len);
  return CompareSteps(net_.ranks, context_.op, step_id, StepHash(step_id, in));
}

// Ids and tables from the stage, then the hidden states of all tokens.
at::Tensor DeviceRunner::EnqueueModel(const StagedStep& step) {
  const StageLayout& o = step.layout;
  ops::FeedTokensParams f;
  f.ids = buffers_.ids.data_ptr<int32_t>();
  f.planned = Staged<int32_t>(o.planned);
  f.last_tokens = buffers_.last_tokens.const_data_ptr<int32_t>();
  f.block_table = buffers_.block_table.data_ptr<int32_t>();
  f.packed_table = Staged<int32_t>(o.table);
  f.table_width = Staged<int32_t>(o.table_width);
  f.num_tokens = step.shape.tokens;
  f.num_seqs = step.shape.seqs;
  f.max_blocks = batch_.limits().max_blocks_per_seq();
  f.num_slots = batch_.num_slots();
  ops_.feed(f, context_.op);
  return net_.model->Forward(context_);
}

at::Tensor DeviceRunner::GatherLogits(const at::Tensor& hidden, const int32_t* rows, int32_t num_rows) {
  const at::Tensor& picked = net_.scratch.Rows(net_.gather_slot, num_rows);
  ops::GatherRowsParams p;
  p.out = picked.data_ptr();
  p.in = hidden.const_data_ptr();
  p.rows = rows;
  p.num_rows = num_rows;
  p.hidden = net_.config.hidden_size;
  ops_.gather(p, context_.op);
  return net_.model->Logits(context_, picked);
}

void DeviceRunner::EnqueueSampling(const StagedStep& step, const at::Tensor& logits) {
  const StageLayout& o = step.layout;
  ops::SampleParams p;
  p.logits = logits.const_data_ptr<float>();
  p.tokens = buffers_.sampled.data_ptr<int32_t>();
  p.rows = Staged<ops::SampleRow>(o.rules);
  p.ban_ids = Staged<int32_t>(step.ban_ids);
  p.ban_start = step.num_bans == 0 ? nullptr : Staged<int32_t>(o.ban_start);
  p.logits_stride = logits.stride(0);
  p.num_rows = step.shape.samples;
  p.vocab = net_.config.vocab_size;
  ops_.sample(p, context_.op);
  EnqueueKeep(step);
}

void DeviceRunner::EnqueueKeep(const StagedStep& step) {
  ops::KeepTokensParams k;
  k.last_tokens = buffers_.last_tokens.data_ptr<int32_t>();
  k.tokens = buffers_.sampled.const_data_ptr<int32_t>();
  k.slots = Staged<int32_t>(step.layout.keep_slots);
  k.num_rows = step.shape.samples;
  k.num_slots = batch_.num_slots();
  ops_.keep(k, context_.op);
}

// The rows of `from` in the order that is asked for, on the host.
at::Tensor DeviceRunner::ToHost(const at::Tensor& from, const std::vector<int32_t>& order) {
  const at::Tensor host = at::empty(from.sizes(), at::TensorOptions().dtype(at::kFloat));
  const int64_t width = from.size(1);
  for (size_t i = 0; i < order.size(); ++i) {
    device_.Copy(host.data_ptr<float>() + static_cast<int64_t>(i) * width,
                 from.const_data_ptr<float>() + order[i] * width, static_cast<size_t>(width) * sizeof(float),
                 context_.op.stream);
  }
  device_.Synchronize(context_.op.stream);
  return host;
}

// For rows that ask for what the device's sampler does not do: the step waits for its logits.
void DeviceRunner::SampleOnHost(Slot& slot, const StagedStep& step, const at::Tensor& hidden, StepResult* result) {
  void* const stream = context_.op.stream;
  host_sampler_->Clear();
  for (const BatchRow& row : batch_.rows()) {
    const RunnerSequence& s = *row.sequence;
    if (row.sample) host_sampler_->Add({row.id, &s.sampling, &s.tokens, s.num_prompt_tokens, s.logits_state.get()});
  }
  const std::vector<int32_t>& order = host_sampler_->Arrange();
  const at::Tensor logits = GatherLogits(hidden, Staged<int32_t>(step.layout.logit_rows), step.shape.samples);
  const std::vector<int32_t>& tokens = host_sampler_->Run(ToHost(logits, order), {nullptr, context_.op.num_threads});
  std::copy(tokens.begin(), tokens.end(), slot.tokens);
  device_.Copy(buffers_.sampled.data_ptr(), slot.tokens, tokens.size() * sizeof(int32_t), stream);
  EnqueueKeep(step);
  for (size_t i = 0; i < tokens.size(); ++i) {
    SampledRow& row = result->rows[i];
    row.tokens.assign(1, tokens[i]);
    row.error = host_sampler_->error(i);
    if (host_sampler_->has_logprobs(i)) row.logprobs.push_back(std::move(host_sampler_->logprobs(i)));
  }
  batch_.Commit(tokens);
}

// A few rows at a time, whatever the length of the prompts. The ids have been read by then; their buffer takes the
// numbers of the rows.
void DeviceRunner::ReadPromptLogprobs(const at::Tensor& hidden, StepResult* result) {
  const PromptQuestions asked(batch_.rows());
  const auto total = static_cast<int32_t>(asked.questions().size());
  if (total == 0) return;
  std::vector<PositionLogprobs> answers(total);
  ForLogits(hidden, asked.token_rows(), [&](int32_t first, const at::Tensor& logits) {
    host_sampler_->reader().Read(logits.const_data_ptr<float>(), logits.stride(0),
                                 std::span(asked.questions()).subspan(first, logits.size(0)),
                                 {nullptr, context_.op.num_threads}, answers.data() + first);
  });
  result->prompt_logprobs = asked.Share(std::move(answers));
}

// use(first, logits of rows [first, ...) on the host), a few rows at a time.
void DeviceRunner::ForLogits(const at::Tensor& hidden, const std::vector<int32_t>& rows,
                             const std::function<void(int32_t, const at::Tensor&)>& use) {
  device_.Synchronize(context_.op.stream);
  int32_t* const numbers = buffers_.ids.data_ptr<int32_t>();
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

// A decode step is padded to a size of the ladder, so that it can be a graph; 0 where it cannot.
int32_t DeviceRunner::DecodeSize() const {
  const auto& rows = batch_.rows();
  const bool decode =
      std::all_of(rows.begin(), rows.end(), [](const BatchRow& r) { return r.num_tokens == 1 && r.sample; });
  return decode && graphs_ != nullptr ? graphs_->SizeFor(static_cast<int32_t>(rows.size())) : 0;
}

// The step's copies and its sampling on the device, or what the host does in its place. False: the result is whole.
Result<bool> DeviceRunner::RunStep(StepResult* result) {
  Slot& slot = NextSlot();
  void* const stream = context_.op.stream;
  int32_t size = DecodeSize();
  StagedStep step;
  if (size > 0) {
    step = FillStage(batch_, {size, size, size, Bound(size, size).record_ints}, slot.stage, ring_.stage_bytes);
    if (step.host_only || step.num_bans > 0) size = 0;
  }
  if (size == 0) step = FillStage(batch_, ExactShape(), slot.stage, ring_.stage_bytes);
  const ops::AttentionPlanSize plan = PlanAttention(step, slot.stage, size > 0 ? Bound(1, 1).decode_workers : 0);
  SetInput(step, plan);
  FASTLLM_RETURN_IF_ERROR(CompareWithRanks(result->step_id, step, slot.stage));
  NameRows(result);
  device_.Copy(buffers_.stage.data_ptr(), slot.stage, static_cast<size_t>(step.bytes), stream);
  if (step.host_only) {
    const at::Tensor hidden = EnqueueModel(step);
    ReadPromptLogprobs(hidden, result);
    if (step.shape.samples > 0) {
      SampleOnHost(slot, step, hidden, result);
    } else {
      batch_.Commit({});
    }
    device_.RecordEvent(slot.event, stream);
    return false;
  }
  const auto enqueue = [&] {
    const at::Tensor hidden = EnqueueModel(step);
    if (step.shape.samples == 0) return;
    EnqueueSampling(step, GatherLogits(hidden, Staged<int32_t>(step.layout.logit_rows), step.shape.samples));
  };
  if (size > 0 && plan.prefill_tiles == 0) {
    graphs_->Run(size, enqueue);
  } else {
    enqueue();
  }
  device_.Copy(slot.tokens, buffers_.sampled.const_data_ptr(), result->rows.size() * sizeof(int32_t), stream);
  device_.RecordEvent(slot.event, stream);
  batch_.CommitUnknown();
  return true;
}

// One row of the result for each that samples, in the memory of the last result.
void DeviceRunner::NameRows(StepResult* result) const {
  size_t count = 0;
  for (const BatchRow& row : batch_.rows()) {
    if (!row.sample) continue;
    if (count == result->rows.size()) result->rows.emplace_back();
    SampledRow& out = result->rows[count++];
    out.id = row.id;
    out.tokens.clear();
    out.logprobs.clear();
    out.error.clear();
  }
  result->rows.resize(count);
}

void DeviceRunner::Launch(const StepPlan& plan, PendingStep* pending) {
  StepResult& result = pending->result;
  result.step_id = plan.step_id;
  result.prompt_logprobs.clear();
  pending->tokens = nullptr;
  try {
    const c10::InferenceMode inference;
    result.status = batch_.Apply(plan);
    if (result.status.ok() && batch_.rows().empty()) result.rows.clear();
    if (result.status.ok() && !batch_.rows().empty()) {
      const Result<bool> pends = RunStep(&result);
      result.status = pends.status();
      if (pends.ok() && *pends) {
        const Slot& slot = ring_.slots[(ring_.next + kSlots - 1) % kSlots];
        pending->device = &device_;
        pending->event = slot.event;
        pending->tokens = slot.tokens;
      }
    }
  } catch (const StatusError& e) {
    result.status = e.status();
  } catch (const std::exception& e) {
    result.status = Status::Internal(std::string("step failed: ") + e.what());
  }
  if (result.status.ok()) return;
  result.rows.clear();
  result.prompt_logprobs.clear();
  pending->tokens = nullptr;
}

Status DeviceRunner::ExecuteForLogits(const StepPlan& plan, std::vector<float>* logits) {
  try {
    const c10::InferenceMode inference;
    FASTLLM_RETURN_IF_ERROR(batch_.Apply(plan));
    Slot& slot = NextSlot();
    const StagedStep step = FillStage(batch_, ExactShape(), slot.stage, ring_.stage_bytes);
    SetInput(step, PlanAttention(step, slot.stage, 0));
    device_.Copy(buffers_.stage.data_ptr(), slot.stage, static_cast<size_t>(step.bytes), context_.op.stream);
    std::vector<int32_t> rows(batch_.num_tokens());
    std::iota(rows.begin(), rows.end(), 0);
    ForLogits(EnqueueModel(step), rows, [logits](int32_t, const at::Tensor& slab) {
      const float* p = slab.const_data_ptr<float>();
      logits->insert(logits->end(), p, p + slab.numel());
    });
    device_.RecordEvent(slot.event, context_.op.stream);
    // What follows a sampled row is not known here, so its sequence takes token 0 and must end with this step.
    batch_.Commit(std::vector<int32_t>(step.shape.samples, 0));
    return Status::Ok();
  } catch (const StatusError& e) {
    return e.status();
  } catch (const std::exception& e) {
    return Status::Internal(std::string("step failed: ") + e.what());
  }
}

}  // namespace fastllm::runtime
