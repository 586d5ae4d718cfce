#include "runtime/runner/device_runner.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "runtime/nn/talk.h"
#include "runtime/runner/step_guard.h"
#include "runtime/tensor/tensors.h"

namespace fastllm::runtime {
ops::AttentionBound DeviceRunner::Bound(int32_t seqs, int32_t tokens) const {
  if (ops_.bound == nullptr) return {};
  const ModelConfig& c = net_.share.config;
  return ops_.bound({seqs, tokens, c.num_heads, c.num_kv_heads, c.head_dim, net_.placement.dtype, net_.kv_dtype});
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

ops::AttentionPlanSize DeviceRunner::PlanAttention(const StagedStep& step, char* host,
                                                   const ops::AttentionPlanSize& launch) const {
  if (ops_.plan == nullptr) return {};
  ops::AttentionPlanParams p;
  p.query_start = reinterpret_cast<const int32_t*>(host + step.layout.query_start);
  p.seq_len = reinterpret_cast<const int32_t*>(host + step.layout.seq_len);
  p.num_seqs = step.shape.seqs;
  p.num_q_heads = net_.share.config.num_heads;
  p.num_kv_heads = net_.share.config.num_kv_heads;
  p.head_dim = net_.share.config.head_dim;
  p.dtype = net_.placement.dtype;
  p.kv_dtype = net_.kv_dtype;
  p.decode_workers = launch.decode_workers;
  p.prefill_tiles = launch.prefill_tiles;
  p.record = reinterpret_cast<int32_t*>(host + step.layout.record);
  p.record_capacity = step.shape.record_ints;
  p.block_size = batch_.limits().block_size;
  p.max_blocks = batch_.limits().max_blocks_per_seq();
  return ops_.plan(p);
}

void DeviceRunner::SetInput(const StagedStep& step, const ops::AttentionPlanSize& plan) {
  const StageLayout& o = step.layout;
  StepInput& in = context_.input;
  in.ids = DataOf<const int32_t>(buffers_.ids);
  in.positions = Staged<int32_t>(o.positions);
  in.slot_mapping = Staged<int64_t>(o.slot_mapping);
  in.query_start = Staged<int32_t>(o.query_start);
  in.seq_len = Staged<int32_t>(o.seq_len);
  in.block_table = DataOf<const int32_t>(buffers_.block_table);
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

// Where some communicator takes what lies on the host. Each rank of a tensor group has all logits and draws the same
// tokens from them, so nothing else is exchanged about a step.
Status DeviceRunner::CompareWithRanks(uint64_t step_id, const StagedStep& step, const char* host) const {
  const bool on_host = net_.placement.device == ops::Device::kCpu || net_.ranks.host != nullptr;
  if (net_.ranks.topology.world() == 1 || !on_host) return Status::Ok();
  const StageLayout& o = step.layout;
  StepInput in = context_.input;
  in.ids = reinterpret_cast<const int32_t*>(host + o.planned);
  in.positions = reinterpret_cast<const int32_t*>(host + o.positions);
  in.slot_mapping = reinterpret_cast<const int64_t*>(host + o.slot_mapping);
  in.query_start = reinterpret_cast<const int32_t*>(host + o.query_start);
  in.seq_len = reinterpret_cast<const int32_t*>(host + o.seq_len);
  return CompareSteps(net_.ranks, context_.op, step_id, StepHash(step_id, in));
}

// Whether the last layer is to compute the rows that sample and no others. Not in graphs, which keep the addresses of
// buffers that the largest step has made.
bool DeviceRunner::WantsSampled(const StageShape& shape) const {
  return net_.ranks.topology.world() == 1 && shape.samples < shape.tokens;
}

// Ids and tables from the stage, then the hidden states of all tokens, or of those that sample.
at::Tensor DeviceRunner::EnqueueModel(const StagedStep& step, bool sampled, bool cuts_sums) {
  const StageLayout& o = step.layout;
  context_.cuts_sums = cuts_sums;
  // The plan of attention is of all tokens.
  context_.wanted = sampled ? WantedRows{Staged<int32_t>(o.logit_rows), nullptr, step.shape.samples} : WantedRows();
  ops::FeedTokensParams f;
  f.ids = DataOf<int32_t>(buffers_.ids);
  f.planned = Staged<int32_t>(o.planned);
  f.last_tokens = DataOf<const int32_t>(buffers_.last_tokens);
  f.block_table = DataOf<int32_t>(buffers_.block_table);
  f.packed_table = Staged<int32_t>(o.table);
  f.table_width = Staged<int32_t>(o.table_width);
  f.num_tokens = step.shape.tokens;
  f.num_seqs = step.shape.seqs;
  f.max_blocks = batch_.limits().max_blocks_per_seq();
  f.num_slots = batch_.num_slots();
  ops_.feed(f, context_.op);
  return net_.model->Forward(context_);
}

const at::Tensor& DeviceRunner::GatherRows(const at::Tensor& hidden, const int32_t* rows, int32_t num_rows) {
  const at::Tensor& picked = net_.scratch.Rows(net_.gather_slot, num_rows);
  ops::GatherRowsParams p;
  p.out = picked.data_ptr();
  p.in = hidden.const_data_ptr();
  p.rows = rows;
  p.num_rows = num_rows;
  p.hidden = net_.config.hidden_size;
  ops_.gather(p, context_.op);
  return picked;
}

at::Tensor DeviceRunner::GatherLogits(const at::Tensor& hidden, const int32_t* rows, int32_t num_rows) {
  return net_.model->Logits(context_, GatherRows(hidden, rows, num_rows));
}

bool DeviceRunner::IsDecode() const {
  const auto& rows = batch_.rows();
  return std::all_of(rows.begin(), rows.end(), [](const BatchRow& r) { return r.num_tokens == 1 && r.sample; });
}

// What the step is padded to so that it can be a graph; no tokens where it cannot.
StageShape DeviceRunner::GraphShape(const StageShape& exact, bool decode) const {
  if (graphs_ == nullptr) return {};
  StageShape shape = graphs_->Pad(exact, decode);
  if (shape.tokens == 0) return {};
  const ops::AttentionBound bound = Bound(shape.seqs, shape.tokens);
  if (!decode && ops_.bound != nullptr && bound.prefill_tiles == 0) return {};  // a backend that cannot
  shape.record_ints = bound.record_ints;
  return shape;
}

// Of a step that is to be a graph; `decodes`: some of its rows are one token. Kernels that it has no work for are not
// launched.
ops::AttentionPlanSize DeviceRunner::LaunchSizes(const StageShape& shape, bool decode, bool decodes) const {
  if (shape.tokens == 0) return {};
  const ops::AttentionBound bound = Bound(shape.seqs, shape.tokens);
  // Where there is no kernel for decodes, the others do them.
  const bool tiles = !decode || bound.decode_workers == 0;
  return {0, decodes ? bound.decode_workers : 0, tiles ? bound.prefill_tiles : 0};
}

void DeviceRunner::RunGraph(const StagedStep& step, const ops::AttentionPlanSize& plan, bool decode) {
  const StepKey key{step.shape,     plan.decode_workers, plan.prefill_tiles, decode,
                    step.penalties, step.logprobs,       Picks(step)};
  graphs_->Run(key, [&] { EnqueueStep(step, /*captured=*/true); });
}

// Behind the copy of the stage.
void DeviceRunner::EnqueueStep(const StagedStep& step, bool captured) {
  const bool sampled = !captured && WantsSampled(step.shape);
  const at::Tensor hidden = EnqueueModel(step, sampled, /*cuts_sums=*/!captured);
  if (step.shape.samples == 0) return;
  EnqueueTokens(step,
                sampled ? hidden : GatherRows(hidden, Staged<int32_t>(step.layout.logit_rows), step.shape.samples));
  EnqueueKeep(step);
}

// The step's copies and its sampling on the device, or what the host does in its place. False: the result is whole.
Result<bool> DeviceRunner::RunStep(StepResult* result) {
  Slot& slot = NextSlot();
  void* const stream = context_.op.stream;
  PrepareTallies(static_cast<int>(&slot - ring_.slots));
  const DeviceSampling sampling = Sampling();
  const bool decode = IsDecode();
  const StageShape exact = ExactShape();
  StageShape padded = GraphShape(exact, decode);
  StagedStep step;
  if (padded.tokens > 0) {
    step = FillStage(batch_, padded, sampling, slot.stage, ring_.stage_bytes);
    if (step.needs_host() || step.num_bans > 0 || step.num_biases > 0) padded = {};
  }
  if (padded.tokens == 0) step = FillStage(batch_, exact, sampling, slot.stage, ring_.stage_bytes);
  const bool decodes = std::ranges::any_of(batch_.rows(), [](const BatchRow& r) { return r.num_tokens == 1; });
  const ops::AttentionPlanSize plan = PlanAttention(step, slot.stage, LaunchSizes(padded, decode, decodes));
  SetInput(step, plan);
  FASTLLM_RETURN_IF_ERROR(CompareWithRanks(result->step_id, step, slot.stage));
  NameRows(result);
  device_.Copy(buffers_.stage.data_ptr(), slot.stage, static_cast<size_t>(step.bytes), stream);
  if (step.needs_host()) {
    FinishOnHost(slot, step, result);
    return false;
  }
  if (padded.tokens > 0) {
    RunGraph(step, plan, decode);
  } else {
    EnqueueStep(step, /*captured=*/false);
  }
  device_.Copy(slot.tokens, buffers_.sampled.const_data_ptr(), result->rows.size() * sizeof(int32_t), stream);
  slot.drawn.num_top.clear();
  if (step.logprobs) FetchLogprobs(slot, step);
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
  pending->logprobs = nullptr;
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
        pending->logprobs = slot.drawn.num_top.empty() ? nullptr : &slot.drawn;
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
    const StagedStep step = FillStage(batch_, ExactShape(), {}, slot.stage, ring_.stage_bytes);
    SetInput(step, PlanAttention(step, slot.stage, {}));
    device_.Copy(buffers_.stage.data_ptr(), slot.stage, static_cast<size_t>(step.bytes), context_.op.stream);
    std::vector<int32_t> rows(batch_.num_tokens());
    std::iota(rows.begin(), rows.end(), 0);
    ForLogits(EnqueueModel(step), rows, [logits](int32_t, const at::Tensor& slab) {
      const float* p = DataOf<const float>(slab);
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
