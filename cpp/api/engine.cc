// The composition root: resolves the configuration, builds runtime and core, and implements fastllm::Engine.
#include "fastllm/engine.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "api/create_group.h"
#include "api/device_facts.h"
#include "api/phase_timer.h"
#include "api/processor_table.h"
#include "api/start_executor.h"
#include "core/config/field_access.h"
#include "core/config/resolve.h"
#include "core/engine/engine_core.h"
#include "core/engine/recorder.h"
#include "core/request/dry_breakers.h"
#include "core/request/request.h"
#include "core/request/validate.h"
#include "core/request/validate_options.h"
#include "core/text/detokenizer.h"
#include "runtime/executor/local_executor.h"
#include "runtime/models/model_config.h"
#include "runtime/weights/gguf_tokens.h"

namespace fastllm {
namespace {

// splitmix64 (Steele, Lea, Flood 2014): spreads a counter over 64 bits for requests that bring no seed.
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

int64_t SteadyNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class EngineImpl final : public Engine {
 public:
  EngineImpl(EngineInfo info, RequestLimits limits, uint64_t seed, std::shared_ptr<const TokenTable> tokens,
             api::ProcessorTable processors, std::unique_ptr<EngineCore> core)
      : info_(std::move(info)),
        limits_(limits),
        seed_(seed),
        processors_(std::move(processors)),
        dry_breakers_(std::move(tokens)),
        core_(std::move(core)) {}
  ~EngineImpl() override {
    // Without the threads to join there is no orderly end: a forked child leaves the engine to its parent.
    if (IsForked()) static_cast<void>(core_.release());
  }

  Result<uint64_t> Submit(GenerationRequest r) override {
    FASTLLM_RETURN_IF_ERROR(CheckProcess());
    if (r.data_parallel_rank < -1 || r.data_parallel_rank > 0) {
      return Status::InvalidArgument("data_parallel_rank must be 0, got " + std::to_string(r.data_parallel_rank) +
                                     ": data_parallel_size is 1");
    }
    TruncatePrompt(r.sampling, limits_.max_model_len, &r.prompt_token_ids);
    FASTLLM_RETURN_IF_ERROR(ValidateOptions(r, limits_));
    FASTLLM_ASSIGN_OR_RETURN(auto chosen_processors, processors_.Choose(r.sampling));
    FASTLLM_ASSIGN_OR_RETURN(const int32_t max_tokens, ValidateRequest(r.prompt_token_ids, r.sampling, limits_));
    auto request = std::make_shared<Request>();
    const int32_t n = r.sampling.n;
    request->id = next_id_.fetch_add(static_cast<uint64_t>(n), std::memory_order_relaxed);
    request->prompt = std::move(r.prompt_token_ids);
    request->seed = r.sampling.seed ? static_cast<uint64_t>(*r.sampling.seed) : Mix(seed_ ^ Mix(request->id));
    if (r.sampling.dry_multiplier != 0.0f) {
      FASTLLM_ASSIGN_OR_RETURN(request->dry_breakers, dry_breakers_.Find(r.sampling.dry_sequence_breakers));
    }
    // Prompt logprobs need the logits of every prompt token.
    request->read_prefix_cache =
        !r.sampling.skip_reading_prefix_cache.value_or(false) && !r.sampling.prompt_logprobs.has_value();
    request->logits_processors = std::move(chosen_processors);
    request->sampling = std::move(r.sampling);
    request->max_tokens = max_tokens;
    request->eos_token_ids = info_.eos_token_ids;
    request->extra_keys = std::move(r.extra_keys);
    request->priority = r.priority;
    request->timeout_ms = r.timeout_ms;
    request->max_queue_ms = r.max_queue_time_ms;
    request->arrival_ns = SteadyNanos();
    const uint64_t id = request->id;
    FASTLLM_RETURN_IF_ERROR(n == 1 ? core_->Add(std::move(request)) : core_->AddAll(FanOut(*request)));
    return id;
  }

  Status Validate(const GenerationRequest& r) const override {
    FASTLLM_RETURN_IF_ERROR(ValidateOptions(r, limits_));
    FASTLLM_RETURN_IF_ERROR(processors_.Choose(r.sampling).status());
    if (!r.sampling.truncate_prompt_tokens) return ValidateRequest(r.prompt_token_ids, r.sampling, limits_).status();
    std::vector<TokenId> prompt = r.prompt_token_ids;
    TruncatePrompt(r.sampling, limits_.max_model_len, &prompt);
    return ValidateRequest(prompt, r.sampling, limits_).status();
  }

  void Abort(uint64_t request_id) override {
    if (!IsForked()) core_->Abort(request_id);
  }
  std::vector<RequestDelta> Drain(std::chrono::milliseconds timeout) override {
    if (IsForked()) return {};
    return core_->Drain(std::min<std::chrono::milliseconds>(timeout, kLongestWait));
  }
  void DrainInto(std::chrono::milliseconds timeout, std::vector<RequestDelta>* deltas) override {
    if (IsForked()) return deltas->clear();
    core_->DrainInto(std::min<std::chrono::milliseconds>(timeout, kLongestWait), deltas);
  }
  int event_fd() const override { return core_->event_fd(); }
  const EngineInfo& info() const override { return info_; }
  // fork() may have copied them half written, for ever.
  EngineStats stats() const override { return IsForked() ? EngineStats{} : core_->stats(); }
  Status health() const override {
    FASTLLM_RETURN_IF_ERROR(CheckProcess());
    return core_->health();
  }
  Status Pause(PauseMode mode) override {
    FASTLLM_RETURN_IF_ERROR(CheckProcess());
    return core_->Pause(mode);
  }
  Status Resume() override {
    FASTLLM_RETURN_IF_ERROR(CheckProcess());
    return core_->Resume();
  }
  Status Sleep(int32_t level) override {
    FASTLLM_RETURN_IF_ERROR(CheckProcess());
    return core_->Sleep(level);
  }
  Status Wake(const std::vector<std::string>& tags) override {
    FASTLLM_RETURN_IF_ERROR(CheckProcess());
    return core_->Wake(tags);
  }
  Status ResetPrefixCache() override {
    FASTLLM_RETURN_IF_ERROR(CheckProcess());
    return core_->ResetPrefixCache();
  }
  Result<int32_t> CountCachedTokens(std::vector<int32_t> tokens, ExtraKeys keys) override {
    FASTLLM_RETURN_IF_ERROR(CheckProcess());
    FASTLLM_RETURN_IF_ERROR(ValidateExtraKeys(keys, static_cast<int64_t>(tokens.size())));
    return core_->CountCachedTokens(std::move(tokens), std::move(keys));
  }
  Result<int32_t> PinPrefix(std::vector<int32_t> tokens, ExtraKeys keys, int32_t priority, int64_t ttl_ms) override {
    FASTLLM_RETURN_IF_ERROR(CheckProcess());
    FASTLLM_RETURN_IF_ERROR(ValidateExtraKeys(keys, static_cast<int64_t>(tokens.size())));
    return core_->PinPrefix(std::move(tokens), std::move(keys), priority, ttl_ms);
  }
  KvEventBatch DrainKvEvents(size_t most) override { return IsForked() ? KvEventBatch{} : core_->DrainKvEvents(most); }
  bool DrainAndShutdown(std::chrono::milliseconds timeout) override {
    return IsForked() || core_->DrainAndShutdown(std::min(timeout, kLongestWait));
  }
  void Shutdown() override {
    if (!IsForked()) core_->Shutdown();
  }

 private:
  // A deadline of a longer wait would not fit the clock.
  static constexpr std::chrono::milliseconds kLongestWait = std::chrono::hours(24 * 365);

  // fork() copies the engine's memory and none of its threads.
  bool IsForked() const { return getpid() != pid_; }

  // The outputs of a request with n > 1. Seeds count up from the request's, or are drawn for each. The first says what
  // there is to say about the prompt, which the others then find in the cache.
  std::vector<std::shared_ptr<const Request>> FanOut(const Request& request) const {
    std::vector<std::shared_ptr<const Request>> outputs;
    outputs.reserve(static_cast<size_t>(request.sampling.n));
    for (int32_t index = 0; index < request.sampling.n; ++index) {
      auto output = std::make_shared<Request>(request);
      output->id += static_cast<uint64_t>(index);
      output->parent_id = request.id;
      output->index = index;
      output->seed = request.sampling.seed ? request.seed + static_cast<uint64_t>(index) : Mix(seed_ ^ Mix(output->id));
      if (index > 0) {
        output->sampling.prompt_logprobs.reset();
        output->read_prefix_cache = !request.sampling.skip_reading_prefix_cache.value_or(false);
      }
      outputs.push_back(std::move(output));
    }
    return outputs;
  }
  Status CheckProcess() const {
    if (!IsForked()) return Status::Ok();
    return Status::FailedPrecondition("the engine was made in process " + std::to_string(pid_) +
                                      " and does not run in its forked child " + std::to_string(getpid()) +
                                      "; make the engine after fork()");
  }

  const EngineInfo info_;
  const RequestLimits limits_;
  const uint64_t seed_;
  const pid_t pid_ = getpid();
  std::atomic<uint64_t> next_id_{1};
  const api::ProcessorTable processors_;
  DryBreakers dry_breakers_;
  std::unique_ptr<EngineCore> core_;
};

// The caller's table, or the one that the model file carries; null when there is neither.
Result<std::shared_ptr<const TokenTable>> ChooseTokens(std::optional<TokenTable> given,
                                                       const runtime::ModelSource& source) {
  std::shared_ptr<const TokenTable> none;
  if (given) {
    FASTLLM_RETURN_IF_ERROR(ValidateTokenTable(*given));
    return std::shared_ptr<const TokenTable>(std::make_shared<TokenTable>(*std::move(given)));
  }
  if (source.gguf == nullptr) return none;
  auto table = runtime::TokenTableFromGguf(source.gguf->metadata());
  if (table.ok()) return std::shared_ptr<const TokenTable>(std::make_shared<TokenTable>(std::move(table).value()));
  if (table.status().code() == StatusCode::kNotFound) return none;
  return table.status();
}

// What the model says; AddResolved() has the rest.
EngineInfo MakeInfo(const runtime::ModelSource& source, int32_t max_logprobs) {
  const runtime::ModelConfig& model = source.config;
  EngineInfo info;
  info.default_sampling_params = source.sampling.params;
  info.default_sampling_fields = source.sampling.stated;
  info.architecture = model.architecture;
  info.vocab_size = model.vocab_size;
  info.eos_token_ids = model.eos_token_ids;
  info.max_logprobs = max_logprobs;
  return info;
}

void AddResolved(const ResolvedConfig& resolved, EngineInfo* info) {
  info->max_model_len = resolved.sched.max_model_len;
  info->num_kv_blocks = resolved.kv.num_blocks;
  info->block_size = resolved.kv.block_size;
  info->resolved = resolved.values;
}

Result<EngineCoreOptions> MakeCoreOptions(const RuntimeOptions& runtime, const ResolvedConfig& resolved) {
  EngineCoreOptions options;
  options.stall_timeout = std::chrono::seconds(runtime.stall_timeout_s);
  if (!runtime.record_path.empty()) {
    FASTLLM_ASSIGN_OR_RETURN(
        options.recorder, Recorder::Open(runtime.record_path, runtime.record_max_bytes, resolved.sched, resolved.kv));
  }
  return options;
}

RequestLimits MakeLimits(const EngineInfo& info, const ResolvedConfig& resolved, bool has_tokens) {
  RequestLimits limits;
  limits.vocab_size = info.vocab_size;
  limits.max_model_len = info.max_model_len;
  limits.kv_capacity_tokens = static_cast<int32_t>(
      std::min<int64_t>(static_cast<int64_t>(resolved.kv.num_blocks - 1) * resolved.kv.block_size, INT32_MAX));
  limits.has_tokens = has_tokens;
  limits.max_logprobs = info.max_logprobs;
  limits.by_priority = resolved.sched.policy == SchedulingPolicy::kPriority;
  return limits;
}

Result<std::unique_ptr<Engine>> CreateEngine(const EngineConfig& config, std::optional<TokenTable> tokens,
                                             std::vector<std::shared_ptr<LogitsProcessor>> logits_processors) {
  FASTLLM_RETURN_IF_ERROR(ValidateFields(config));
  api::PhaseTimer timer;
  FASTLLM_ASSIGN_OR_RETURN(
      auto source, runtime::OpenModel(config.model.model, config.model.load_format, config.model.generation_config));
  timer.Lap("open_model");
  FASTLLM_ASSIGN_OR_RETURN(auto table, ChooseTokens(std::move(tokens), source));
  timer.Lap("token_table");

  EngineInfo info = MakeInfo(source, config.model.max_logprobs);
  api::ProcessorTable processors(logits_processors);
  FASTLLM_ASSIGN_OR_RETURN(auto started,
                           api::StartExecutor(config, std::move(source), std::move(logits_processors), timer.phases()));
  const ResolvedConfig& resolved = started.resolved;
  timer.Skip();
  AddResolved(resolved, &info);
  const RequestLimits limits = MakeLimits(info, resolved, table != nullptr);

  FASTLLM_ASSIGN_OR_RETURN(auto core_options, MakeCoreOptions(config.runtime, resolved));
  auto core = std::make_unique<EngineCore>(resolved.sched, resolved.kv, std::move(started.executor), table,
                                           std::move(core_options));
  timer.Lap("engine_thread");
  info.startup_seconds = timer.Finish();
  return std::unique_ptr<Engine>(
      std::make_unique<EngineImpl>(std::move(info), limits, static_cast<uint64_t>(config.model.seed), std::move(table),
                                   std::move(processors), std::move(core)));
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Create(const EngineConfig& config, std::optional<TokenTable> tokens,
                                               std::vector<std::shared_ptr<LogitsProcessor>> logits_processors) {
  try {
    if (config.runtime.data_parallel_size > 1 || config.parallel.restart_failed_engine) {
      return api::CreateGroup(config, std::move(tokens), !logits_processors.empty(), CreateEngine);
    }
    return CreateEngine(config, std::move(tokens), std::move(logits_processors));
  } catch (const std::bad_alloc&) {
    return Status::ResourceExhausted("out of memory while the engine was made");
  } catch (const std::system_error& e) {  // threads, file descriptors
    return Status::ResourceExhausted(std::string("the engine cannot be made: ") + e.what());
  } catch (const std::exception& e) {
    return Status::Internal(std::string("the engine cannot be made: ") + e.what());
  }
}

}  // namespace fastllm
