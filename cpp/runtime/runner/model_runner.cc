#include "runtime/runner/model_runner.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "ops/table/threads.h"
#include "runtime/models/base/registry.h"
#include "runtime/models/base/weight_map.h"
#include "runtime/nn/talk.h"
#include "runtime/runner/kv_scales.h"
#include "runtime/runner/prompt_questions.h"
#include "runtime/runner/runner_checks.h"
#include "runtime/runner/step_guard.h"
#include "runtime/tensor/tensors.h"

namespace fastllm::runtime {
namespace {

constexpr ops::Device kDevice = ops::Device::kCpu;
constexpr int32_t kLogitSlab = 256;  // rows of logits that ExecuteForLogits holds at once

constexpr int64_t kPromptSlabBytes = int64_t{16} << 20;  // of logits that prompt logprobs are read from at once

const ops::OpTable& Ops(const RunnerOptions& options) {
  return options.ops != nullptr ? *options.ops : ops::BuiltinOps();
}

}  // namespace

ModelRunner::ModelRunner(ModelConfig config, ModelShare share, const RunnerOptions& options, Sampler sampler)
    : config_(std::move(config)),
      place_{options.ranks, std::move(share)},
      gather_slot_(scratch_.Reserve("gathered", config_.hidden_size)),
      batch_(MakeBatchLimits(config_, options)),
      buffers_(batch_.limits()),
      sampler_(std::move(sampler)) {}

Status ModelRunner::Load(const TensorSource* tensors, const RunnerOptions& options) {
  const ModelEntry* entry = BuiltinModels().FindArchitecture(config_.architecture);
  if (entry == nullptr) {
    return Status::Unimplemented("architecture \"" + config_.architecture +
                                 "\" is not known; known: " + BuiltinModels().Architectures());
  }
  Placement placement;
  placement.attention_backend = options.placement.attention_backend;
  Builder builder(Ops(options), placement, options.sched.max_model_len, place_.share.layers, &params_, &scratch_,
                  place_.ranks, options.linear);
  model_ = entry->build(config_, builder);
  gather_ = builder.Op<ops::GatherRowsFn>(ops::OpId::kGatherRows);
  FASTLLM_RETURN_IF_ERROR(builder.status());
  const WeightTarget target{{},
                            &ops::BuiltinOps(),
                            {nullptr, options.num_threads},
                            options.keep_quantized,
                            options.quantize_int8,
                            place_.share.layers};
  if (tensors == nullptr) return FillDummyWeights(static_cast<uint64_t>(options.seed), target, params_);
  return LoadWeights(*tensors, entry->weights, config_.gguf_names, target, params_);
}

Result<std::unique_ptr<ModelRunner>> ModelRunner::Create(ModelSource source, const RunnerOptions& options,
                                                         PhaseSeconds* phases) {
  FASTLLM_RETURN_IF_ERROR(CheckRunnerOptions(source.config, options));
  FASTLLM_ASSIGN_OR_RETURN(ModelShare share, ShareOf(source.config, options.ranks.topology));
  try {
    const c10::InferenceMode inference;
    FASTLLM_ASSIGN_OR_RETURN(
        Sampler sampler, Sampler::Create(Ops(options), kDevice, source.config.vocab_size, options.sched.max_num_seqs,
                                         options.logprobs_mode, options.logits_processors));
    PhaseTimer timer(phases);
    std::unique_ptr<ModelRunner> runner(new ModelRunner(source.config, std::move(share), options, std::move(sampler)));
    FASTLLM_RETURN_IF_ERROR(runner->Load(source.tensors.get(), options));
    timer.Lap("load_weights");
    FASTLLM_ASSIGN_OR_RETURN(runner->kv_, KvStorage::Create(runner->place_.share.config, options.kv.num_blocks,
                                                            options.kv.block_size, options.kv_dtype));
    FASTLLM_RETURN_IF_ERROR(
        SetKvScales(source.tensors.get(), runner->place_.share.layers.first, runner->kv_.mutable_layers()));
    timer.Lap("kv_cache");
    runner->context_.kv_layers = runner->kv_.layers().data();
    runner->context_.scratch = &runner->scratch_;
    runner->context_.op.num_threads = options.num_threads;
    // Last: the threads that load weights would inherit the one core of this thread.
    if (options.pin_threads) FASTLLM_RETURN_IF_ERROR(ops::PinThreads(options.num_threads));
    return runner;
  } catch (const std::exception& e) {
    return Status::Internal(std::string("loading the model failed: ") + e.what());
  }
}

Result<at::Tensor> ModelRunner::Forward(const StepPlan& plan, bool some_suffice) {
  FASTLLM_RETURN_IF_ERROR(batch_.Apply(plan));
  if (batch_.rows().empty()) return at::Tensor();
  context_.input = buffers_.Fill(batch_);
  const auto asks_of_prompt = [](const BatchRow& row) { return row.sequence->wants_prompt_logprobs; };
  const bool some = some_suffice && place_.ranks.topology.world() == 1 &&
                    std::none_of(batch_.rows().begin(), batch_.rows().end(), asks_of_prompt);
  context_.wanted = some ? buffers_.Wanted() : WantedRows();
  if (place_.ranks.topology.world() > 1) {
    FASTLLM_RETURN_IF_ERROR(
        CompareSteps(place_.ranks, context_.op, plan.step_id, StepHash(plan.step_id, context_.input)));
  }
  return model_->Forward(context_);
}

const at::Tensor& ModelRunner::GatherHidden(const at::Tensor& hidden, const int32_t* rows, int32_t num_rows) {
  const at::Tensor& picked = scratch_.Rows(gather_slot_, num_rows);
  ops::GatherRowsParams p;
  p.out = picked.data_ptr();
  p.in = hidden.const_data_ptr();
  p.rows = rows;
  p.num_rows = num_rows;
  p.hidden = config_.hidden_size;
  gather_(p, context_.op);
  return picked;
}

at::Tensor ModelRunner::GatherLogits(const at::Tensor& hidden, const int32_t* rows, int32_t num_rows) {
  return model_->Logits(context_, GatherHidden(hidden, rows, num_rows));
}

void ModelRunner::ReadPromptLogprobs(const at::Tensor& hidden, StepResult* result) {
  const PromptQuestions asked(batch_.rows());
  const auto total = static_cast<int32_t>(asked.questions().size());
  if (total == 0) return;
  // Never the logits of all tokens at once: a few rows, whatever the length of the prompts.
  const int64_t row_bytes = int64_t{config_.vocab_size} * static_cast<int64_t>(sizeof(float));
  const auto slab = static_cast<int32_t>(std::clamp<int64_t>(kPromptSlabBytes / row_bytes, 8, kLogitSlab));
  std::vector<PositionLogprobs> answers(total);
  for (int32_t first = 0; first < total; first += slab) {
    const int32_t count = std::min(slab, total - first);
    const at::Tensor logits = GatherLogits(hidden, asked.token_rows().data() + first, count);
    if (!place_.ranks.topology.gives_output()) continue;
    sampler_.reader().Read(DataOf<const float>(logits), logits.stride(0),
                           std::span(asked.questions()).subspan(first, count), context_.op, answers.data() + first);
  }
  if (place_.ranks.topology.gives_output()) result->prompt_logprobs = asked.Share(std::move(answers));
}

// What tensor rank 0 has sampled, on the others as well.
std::vector<int32_t> ModelRunner::ShareTokens(std::vector<int32_t> tokens) {
  if (place_.ranks.tensor != nullptr) {
    ThrowIfError(place_.ranks.tensor->Broadcast(context_.op, tokens.data(), static_cast<int64_t>(tokens.size()),
                                                CommType::kI32, 0));
  }
  return tokens;
}

Status ModelRunner::Sample(const at::Tensor& hidden, StepResult* result) {
  sampler_.Clear();
  for (const BatchRow& row : batch_.rows()) {
    if (!row.sample) continue;
    const RunnerSequence& s = *row.sequence;
    sampler_.Add({row.id, &s.sampling, &s.tokens, s.num_prompt_tokens, s.logits_state.get()});
    result->rows.push_back({row.id, {}});
  }
  if (result->rows.empty()) {
    batch_.Commit({});
    return Status::Ok();
  }
  const std::vector<int32_t>& order = sampler_.Arrange();
  const std::vector<int32_t>& wanted = context_.wanted.some() ? order : buffers_.ArrangeLogitRows(order);
  const auto num_wanted = static_cast<int32_t>(wanted.size());
  if (place_.ranks.topology.world() == 1 && model_->CanPick(num_wanted)) {
    if (std::vector<int32_t>* const tokens = sampler_.GreedyTokens(); tokens != nullptr) {
      model_->Pick(context_, GatherHidden(hidden, wanted.data(), num_wanted), tokens->data());
      for (size_t i = 0; i < tokens->size(); ++i) result->rows[i].tokens.push_back((*tokens)[i]);
      batch_.Commit(*tokens);
      return Status::Ok();
    }
  }
  const at::Tensor logits = GatherLogits(hidden, wanted.data(), num_wanted);
  if (!place_.ranks.topology.gives_output()) {
    result->rows.clear();
    batch_.Commit(ShareTokens(std::vector<int32_t>(wanted.size())));
    return Status::Ok();
  }
  const std::vector<int32_t> tokens = ShareTokens(sampler_.Run(logits, context_.op));
  for (size_t i = 0; i < tokens.size(); ++i) {
    result->rows[i].tokens.push_back(tokens[i]);
    result->rows[i].error = sampler_.error(i);
    if (sampler_.has_logprobs(i)) result->rows[i].logprobs.push_back(std::move(sampler_.logprobs(i)));
  }
  batch_.Commit(tokens);
  return Status::Ok();
}

StepResult ModelRunner::Execute(const StepPlan& plan) {
  StepResult result;
  result.step_id = plan.step_id;
  try {
    const c10::InferenceMode inference;
    Result<at::Tensor> hidden = Forward(plan, /*some_suffice=*/true);
    result.status = hidden.status();
    if (hidden.ok() && hidden->defined() && !place_.ranks.topology.last_stage()) {
      batch_.CommitUnknown();
    } else if (hidden.ok() && hidden->defined()) {
      ReadPromptLogprobs(*hidden, &result);
      result.status = Sample(*hidden, &result);
    }
  } catch (const StatusError& e) {
    result.status = e.status();
  } catch (const std::exception& e) {
    result.status = Status::Internal(std::string("step failed: ") + e.what());
  }
  if (!result.status.ok()) {
    result.rows.clear();
    result.prompt_logprobs.clear();
  }
  return result;
}

Status ModelRunner::ExecuteForLogits(const StepPlan& plan, std::vector<float>* logits) {
  try {
    const c10::InferenceMode inference;
    FASTLLM_ASSIGN_OR_RETURN(const at::Tensor hidden, Forward(plan, /*some_suffice=*/false));
    std::vector<int32_t> rows(batch_.num_tokens());
    std::iota(rows.begin(), rows.end(), 0);
    for (int32_t first = 0; place_.ranks.topology.last_stage() && first < batch_.num_tokens(); first += kLogitSlab) {
      const int32_t count = std::min(kLogitSlab, batch_.num_tokens() - first);
      const at::Tensor slab = GatherLogits(hidden, rows.data() + first, count);
      if (!place_.ranks.topology.gives_output()) continue;
      const float* p = DataOf<const float>(slab);
      logits->insert(logits->end(), p, p + slab.numel());
    }
    // What follows a sampled row is not known here, so its sequence takes token 0 and must end with this step.
    std::vector<int32_t> sampled(buffers_.logit_rows().size(), 0);
    batch_.Commit(sampled);
    return Status::Ok();
  } catch (const StatusError& e) {
    return e.status();
  } catch (const std::exception& e) {
    return Status::Internal(std::string("step failed: ") + e.what());
  }
}

}  // namespace fastllm::runtime
