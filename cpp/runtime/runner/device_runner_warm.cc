// Dry steps: what shows the memory that steps need, and what the first requests would wait for.
#include <chrono>
#include <cstdint>
#include <limits>

#include "runtime/runner/device_runner.h"
#include "runtime/runner/dry_steps.h"

namespace fastllm::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// Of the start. Which dry steps are run must not depend on how fast they are: the kernels that they load are not there
// for the KV cache. This only ends a start that would seem to hang; Llama-3.1-8B takes 0.75 s on an H200.
constexpr std::chrono::seconds kMostWarming{15};
// For the graphs, which have a reserve.
constexpr std::chrono::seconds kMostCapturing{1};
constexpr int32_t kLongestWarm = 2048;  // tokens; a longer step takes longer than what it waits for

}  // namespace

// The largest step there can be, so that every buffer has its size and every library its workspace. Then smaller ones,
// so that kernels are loaded and products have their algorithms: those that are short, and longer ones too where other
// devices will wait for this one, as a kernel that is loaded then holds them up (past 1,024 tokens powers of two
// alone). Ranks whose steps are real already do the first one alone: they must do the same. So do devices without
// graphs, such as the CPU, where nothing is loaded.
void DeviceRunner::Rehearse() {
  const BatchLimits& l = batch_.limits();
  DryStep({l.max_num_batched_tokens, MostDrySeqs(l)}, /*asks=*/false, /*makes_room=*/true);
  const bool all = net_.rehearsal != nullptr;
  if (!all && (graphs_ == nullptr || !graphs_->captures() || net_.ranks.topology.world() > 1)) return;
  const Clock::time_point end = all ? Clock::time_point::max() : Clock::now() + kMostWarming;
  const int32_t longest = all ? std::numeric_limits<int32_t>::max() : kLongestWarm;
  for (const DryShape& shape : DrySteps(l, longest)) {
    if (Clock::now() >= end) return;
    DryStep(shape);
  }
}

// Where other devices will wait for this one nothing may be allocated, and no kernel loaded, for the first request with
// penalties or logprobs.
void DeviceRunner::RehearseTallies() {
  tallies_ = TokenTallies::Create(device_, ops_.count, batch_, net_.placement);
  tallies_refused_ = !AllSay(tallies_ != nullptr);
  if (tallies_refused_) tallies_.reset();
  if (tallies_ != nullptr) tallies_->Rehearse(batch_, context_.op);
  for (const int32_t seqs : {1, MostDrySeqs(batch_.limits())}) DryStep({seqs, seqs}, /*asks=*/true);
}

// Graphs, once the KV cache is where it stays. Of decode steps on all ranks; where ranks pick greedy tokens together,
// of both ways to draw. Ranks go on together, the first time when all have their memory. Then, where there is one rank,
// of short prompts, alone and beside decodes of up to as many rows as the least step with prefill has.
void DeviceRunner::CaptureAhead() {
  if (graphs_ == nullptr || !graphs_->captures()) return;
  if (net_.ranks.topology.world() > 1 && net_.ranks.host == nullptr) return;  // they could not ask each other
  const Clock::time_point end = Clock::now() + kMostCapturing;
  for (const int32_t size : DecodeLadder(MostDrySeqs(batch_.limits()))) {
    if (!AllSay(Clock::now() < end)) return;
    const StageShape decodes{size, size, size, 0};
    DryGraph(decodes, /*decode=*/true, /*decodes=*/true);
    if (net_.model->CanPick(size)) DryGraph(decodes, /*decode=*/true, /*decodes=*/true, /*greedy=*/false);
  }
  if (net_.ranks.topology.world() > 1) return;
  for (const bool decodes : {false, true}) {
    if (decodes && Bound(1, 1).decode_workers == 0) return;  // the same graphs
    for (const int32_t size : PrefillLadder(batch_.limits().max_num_batched_tokens)) {
      if (Clock::now() >= end) return;
      DryGraph({size, 1, 1, 0}, /*decode=*/false, decodes);
    }
  }
}

void DeviceRunner::DryStep(const DryShape& dry, bool asks, bool makes_room) {
  Slot& slot = NextSlot();
  const StageShape shape{dry.tokens, dry.seqs, dry.seqs, Bound(dry.seqs, dry.tokens).record_ints};
  StagedStep step = FillDryStage(batch_.limits(), shape, slot.stage);
  step.penalties = asks && tallies_ != nullptr;
  step.logprobs = asks && ops_.logprobs != nullptr;
  SetInput(step, PlanAttention(step, slot.stage, {}));
  void* const stream = context_.op.stream;
  device_.Copy(buffers_.stage.data_ptr(), slot.stage, static_cast<size_t>(step.bytes), stream);
  // Both ways of the last layer: graphs compute all its rows, and of a model with one layer no other has made room.
  const bool sampled = makes_room ? net_.ranks.topology.world() == 1 : WantsSampled(shape);
  if (makes_room && sampled) EnqueueModel(step, /*sampled=*/false);
  // Whole steps need the most room.
  const at::Tensor hidden = EnqueueModel(step, sampled, /*cuts_sums=*/!makes_room);
  // Room also for steps that gather.
  const at::Tensor& gathered = net_.scratch.Rows(net_.gather_slot, dry.seqs);
  if (!sampled) GatherRows(hidden, Staged<int32_t>(step.layout.logit_rows), dry.seqs);
  EnqueueSampling(step, net_.model->Logits(context_, sampled ? hidden : gathered));
  EnqueueKeep(step);
  device_.RecordEvent(slot.event, stream);
  device_.Synchronize(stream);
}

// One token of each sequence, or nothing but padding, as the graph of the steps that are padded to the same.
void DeviceRunner::DryGraph(const StageShape& exact, bool decode, bool decodes, bool greedy) {
  const StageShape shape = GraphShape(exact, decode);
  if (shape.tokens == 0) return;
  Slot& slot = NextSlot();
  StagedStep step = decode ? FillDryStage(batch_.limits(), shape, slot.stage) : FillEmptyStage(shape, slot.stage);
  step.greedy = greedy;
  const ops::AttentionPlanSize plan = PlanAttention(step, slot.stage, LaunchSizes(shape, decode, decodes));
  SetInput(step, plan);
  void* const stream = context_.op.stream;
  device_.Copy(buffers_.stage.data_ptr(), slot.stage, static_cast<size_t>(step.bytes), stream);
  for (int use = 0; use < StepGraphs::kUsesToCapture; ++use) RunGraph(step, plan, decode);
  device_.RecordEvent(slot.event, stream);
  device_.Synchronize(stream);
}

}  // namespace fastllm::runtime
