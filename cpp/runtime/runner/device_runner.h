// DeviceRunner: one rank on a device that runs behind the host. A step is one copy of what the host knows, the model,
// sampling, and a copy of the sampled ids back; the ids feed the next step where they are. Nothing waits for the host
// between steps, and steps of few tokens run as captured graphs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ops/contract/attention_plan.h"
#include "ops/contract/embedding.h"
#include "ops/contract/feed.h"
#include "ops/contract/logprobs.h"
#include "ops/contract/sampling.h"
#include "runtime/comm/rehearsal.h"
#include "runtime/models/base/model.h"
#include "runtime/nn/param.h"
#include "runtime/runner/batch_state.h"
#include "runtime/runner/device_memory.h"
#include "runtime/runner/device_stage.h"
#include "runtime/runner/dry_steps.h"
#include "runtime/runner/model_share.h"
#include "runtime/runner/runner_options.h"
#include "runtime/runner/step_graphs.h"
#include "runtime/runner/step_runner.h"
#include "runtime/runner/token_tallies.h"
#include "runtime/sample/sampler.h"
#include "runtime/tensor/scratch.h"

namespace fastllm::runtime {

// Every call on the thread that made it. It also runs with the CPU as its device, which is how it is tested.
class DeviceRunner : public StepRunner {
 public:
  // Loads the weights, runs a dry step of the largest size to see what it takes, asks options.size_kv (when there is
  // one) for the KV cache, and allocates it. Adds phases to `phases` when given.
  static Result<std::unique_ptr<DeviceRunner>> Create(ModelSource source, const RunnerOptions& options,
                                                      PhaseSeconds* phases);
  ~DeviceRunner() override;

  void Launch(const StepPlan& plan, PendingStep* pending) override;
  Status ExecuteForLogits(const StepPlan& plan, std::vector<float>* logits) override;
  void Learn(std::span<const SampledId> sampled) override {
    for (const SampledId& s : sampled) batch_.Learn(s.step_id, s.id, s.token);
  }

  const ModelConfig& config() const override { return net_.config; }

  int64_t scratch_bytes() const { return net_.scratch.bytes(); }  // of what the layers pass on; steps do not add to it
  int32_t num_captured_graphs() const { return graphs_ == nullptr ? 0 : graphs_->num_captured(); }
  bool has_tallies() const { return tallies_ != nullptr; }

 private:
  // Steps in flight, and one more: a slot is written again only after its step has been finished.
  static constexpr int kSlots = 3;

  struct Net {
    ModelConfig config;
    ModelShare share;
    Ranks ranks;
    std::shared_ptr<Rehearsal> rehearsal;  // ranks.tensor until the first step, where that is over devices
    Placement placement;
    ops::DType kv_dtype = ops::DType::kF32;
    ParamSet params;
    Scratch scratch;
    Scratch::Slot gather_slot = 0;
    std::unique_ptr<Model> model;
    std::vector<ops::KvCacheView> kv_layers;
  };
  struct Ops {
    ops::FeedTokensFn feed = nullptr;
    ops::KeepTokensFn keep = nullptr;
    ops::GatherRowsFn gather = nullptr;
    ops::SampleFn sample = nullptr;
    ops::CountTokensFn count = nullptr;
    ops::LogprobsFn logprobs = nullptr;
    ops::AttentionPlanFn plan = nullptr;  // null: the backend has none
    ops::AttentionBoundFn bound = nullptr;
  };
  struct Buffers {           // on the device
    at::Tensor stage;        // bytes
    at::Tensor ids;          // [max tokens]
    at::Tensor block_table;  // [max seqs + 1, max_blocks]
    at::Tensor last_tokens;  // [slots of sequences]
    at::Tensor sampled;      // [max seqs]
    at::Tensor logprobs;     // bytes, as LogprobBytes() has it
    at::Tensor workspace;    // of attention
    at::Tensor kv;           // bytes
  };
  struct Slot {
    char* stage = nullptr;      // page-locked
    int32_t* tokens = nullptr;  // page-locked
    char* logprobs = nullptr;   // page-locked
    DrawnLogprobs drawn;        // what is in it
    void* event = nullptr;      // recorded at the end of the step
  };
  struct Ring {
    Slot slots[kSlots];
    int next = 0;
    int64_t stage_bytes = 0;
  };

  DeviceRunner(ModelConfig config, ModelShare share, const RunnerOptions& options, const ops::DeviceApi& device);

  // device_runner_load.cc
  Status Load(const TensorSource* tensors, const RunnerOptions& options);
  void AllocateBuffers();
  Status AllocateKv(int32_t num_blocks, const TensorSource* tensors);
  bool AllSay(bool yes) const;
  DeviceMemoryUse MemoryUse(int64_t free_at_start) const;

  // device_runner_warm.cc
  // asks: with penalties, where there are tallies, and logprobs.
  // makes_room: of the largest step, so that every buffer has its size for whatever step comes.
  void DryStep(const DryShape& shape, bool asks = false, bool makes_room = false);
  // `exact`: a step that pads to the graph's size; decode, decodes: as in GraphShape() and LaunchSizes(); greedy: all
  // its rows are.
  void DryGraph(const StageShape& exact, bool decode, bool decodes, bool greedy = true);
  void Rehearse();
  void RehearseTallies();
  void CaptureAhead();

  // device_runner.cc
  ops::AttentionBound Bound(int32_t seqs, int32_t tokens) const;
  Slot& NextSlot();
  StageShape ExactShape() const;
  // `launch`: the launch sizes of a captured step; 0: as many as it takes.
  ops::AttentionPlanSize PlanAttention(const StagedStep& step, char* host, const ops::AttentionPlanSize& launch) const;
  void SetInput(const StagedStep& step, const ops::AttentionPlanSize& plan);
  Status CompareWithRanks(uint64_t step_id, const StagedStep& step, const char* host) const;
  at::Tensor EnqueueModel(const StagedStep& step, bool sampled = false, bool cuts_sums = true);
  bool WantsSampled(const StageShape& shape) const;
  void EnqueueTokens(const StagedStep& step, const at::Tensor& picked);
  void EnqueueSampling(const StagedStep& step, const at::Tensor& logits);
  void EnqueueKeep(const StagedStep& step);
  bool Picks(const StagedStep& step) const;
  const at::Tensor& GatherRows(const at::Tensor& hidden, const int32_t* rows, int32_t num_rows);
  at::Tensor GatherLogits(const at::Tensor& hidden, const int32_t* rows, int32_t num_rows);
  // Whether each row is one new token that is sampled from.
  bool IsDecode() const;
  StageShape GraphShape(const StageShape& exact, bool decode) const;
  ops::AttentionPlanSize LaunchSizes(const StageShape& shape, bool decode, bool decodes) const;
  void RunGraph(const StagedStep& step, const ops::AttentionPlanSize& plan, bool decode);
  void EnqueueStep(const StagedStep& step, bool captured);
  Result<bool> RunStep(StepResult* result);
  // What the host does of a step, for which it waits; the result is whole then.
  void FinishOnHost(Slot& slot, const StagedStep& step, StepResult* result);
  void PrepareTallies(int buffer);
  DeviceSampling Sampling() const;
  std::unique_ptr<StepGraphs> MakeGraphs() const;
  // Of `rows` rows: logprob and rank of the token, ids and logprobs of the top ones.
  static int64_t LogprobBytes(int32_t rows) { return int64_t{rows} * (2 + 2 * kMostDeviceTops) * 4; }
  void EnqueueLogprobs(const StagedStep& step, const at::Tensor& logits);
  void FetchLogprobs(Slot& slot, const StagedStep& step);
  void NameRows(StepResult* result) const;
  at::Tensor ToHost(const at::Tensor& from, const std::vector<int32_t>& order);
  void SampleOnHost(Slot& slot, const StagedStep& step, const at::Tensor& logits, StepResult* result);
  void ReadPromptLogprobs(const at::Tensor& hidden, StepResult* result);
  void ForLogits(const at::Tensor& hidden, const std::vector<int32_t>& rows,
                 const std::function<void(int32_t, const at::Tensor&)>& use);
  template <typename T>
  T* Staged(int64_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(buffers_.stage.data_ptr()) + offset);
  }

  const ops::DeviceApi& device_;
  Net net_;
  BatchState batch_;
  Ops ops_;
  Buffers buffers_;
  Ring ring_;
  ForwardContext context_;
  std::unique_ptr<Sampler> host_sampler_;
  std::unique_ptr<StepGraphs> graphs_;     // null: every step is put on the stream anew
  std::unique_ptr<TokenTallies> tallies_;  // null until a sequence needs them, but for ranks
  bool tallies_refused_ = false;
};

}  // namespace fastllm::runtime
