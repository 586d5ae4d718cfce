// ModelRunner: one rank on the CPU: its model, KV cache and batch. Runs StepPlans; prefill, decode and mixed steps take
// one path. Over several ranks, those of the last pipeline stage have the logits; tensor rank 0 samples and tells the
// others, and only its results have rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/step/step_plan.h"
#include "core/step/step_result.h"
#include "fastllm/status.h"
#include "ops/contract/embedding.h"
#include "runtime/models/base/model.h"
#include "runtime/models/model_config.h"
#include "runtime/nn/param.h"
#include "runtime/runner/batch_state.h"
#include "runtime/runner/kv_storage.h"
#include "runtime/runner/model_share.h"
#include "runtime/runner/runner_options.h"
#include "runtime/runner/step_buffers.h"
#include "runtime/runner/step_runner.h"
#include "runtime/sample/sampler.h"
#include "runtime/tensor/scratch.h"

namespace fastllm::runtime {

// Every call on the thread that made it: torch's thread count and inference mode are set for that thread.
class ModelRunner : public StepRunner {
 public:
  // Loads the weights and maps the KV cache; see MakeLocalExecutor for the options and phases.
  static Result<std::unique_ptr<ModelRunner>> Create(ModelSource source, const RunnerOptions& options,
                                                     PhaseSeconds* phases);

  void Launch(const StepPlan& plan, PendingStep* step) override {
    step->tokens = nullptr;
    step->result = Execute(plan);
  }

  // Runs a plan. Errors, torch's exceptions among them, are in StepResult::status.
  StepResult Execute(const StepPlan& plan);

  Status ExecuteForLogits(const StepPlan& plan, std::vector<float>* logits) override;

  void Learn(std::span<const SampledId> sampled) override {
    for (const SampledId& s : sampled) batch_.Learn(s.step_id, s.id, s.token);
  }

  const ModelConfig& config() const override { return config_; }

 private:
  ModelRunner(ModelConfig config, ModelShare share, const RunnerOptions& options, Sampler sampler);

  Status Load(const TensorSource* tensors, const RunnerOptions& options);
  // Applies the plan and runs the model: hidden states [num_tokens, hidden], or where some suffice those of the tokens
  // that sample (context_.wanted is set then).
  Result<at::Tensor> Forward(const StepPlan& plan, bool some_suffice);
  const at::Tensor& GatherHidden(const at::Tensor& hidden, const int32_t* rows, int32_t num_rows);
  at::Tensor GatherLogits(const at::Tensor& hidden, const int32_t* rows, int32_t num_rows);
  void ReadPromptLogprobs(const at::Tensor& hidden, StepResult* result);
  Status Sample(const at::Tensor& hidden, StepResult* result);
  std::vector<int32_t> ShareTokens(std::vector<int32_t> tokens);

  struct Place {
    Ranks ranks;
    ModelShare share;
  };

  ModelConfig config_;
  Place place_;
  ParamSet params_;
  Scratch scratch_;
  Scratch::Slot gather_slot_;
  std::unique_ptr<Model> model_;
  KvStorage kv_;
  BatchState batch_;
  StepBuffers buffers_;
  Sampler sampler_;
  ops::GatherRowsFn gather_ = nullptr;
  ForwardContext context_;
};

}  // namespace fastllm::runtime
