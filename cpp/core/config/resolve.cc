#include "core/config/resolve.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/config/field_access.h"

namespace fastllm {
namespace {

constexpr int32_t kDefaultMaxNumSeqs = 256;
constexpr int32_t kDefaultMaxBatchedTokens = 1024;
constexpr int32_t kDefaultMaxBatchedTokensGpu = 8192;
constexpr int64_t kDefaultKvBytesCap = int64_t{4} << 30;
constexpr int64_t kDefaultKvPercent = 40;

std::string Str(int64_t v) { return std::to_string(v); }

// Collects the derived values with their reasons.
class Resolver {
 public:
  // Adds to what `so_far` holds.
  Resolver(const EngineConfig& config, const ModelFacts& model, const DeviceFacts& device, ResolvedConfig so_far = {})
      : config_(config), model_(model), device_(device), out_(std::move(so_far)) {}

  Result<ResolvedConfig> Limits() {
    FASTLLM_RETURN_IF_ERROR(ValidateFields(config_));
    ResolveDevice();
    FASTLLM_RETURN_IF_ERROR(ResolveMaxModelLen());
    FASTLLM_RETURN_IF_ERROR(ResolveBatch());
    ResolvePolicies();
    ResolveCache();
    return std::move(out_);
  }

  Result<ResolvedConfig> KvBlocks() {
    FASTLLM_RETURN_IF_ERROR(ResolveKvBlocks());
    return std::move(out_);
  }

 private:
  void Note(std::string name, std::string value, std::string reason) {
    out_.values.push_back({std::move(name), std::move(value), std::move(reason)});
  }

  void ResolveDevice();
  Status ResolveMaxModelLen();
  Status ResolveBatch();
  Status ResolveKvBlocks();
  void ResolvePolicies();
  void ResolveCache();
  // Blocks (the null block included) for the memory budget, before the cap of what the requests can use.
  Result<int64_t> BlocksFromBudget(std::string* reason) const;
  Status CheckAvailable(const char* name, int64_t value, int64_t bytes) const;

  const EngineConfig& config_;
  const ModelFacts& model_;
  const DeviceFacts& device_;
  ResolvedConfig out_;
};

void Resolver::ResolveDevice() {
  Note("device", device_.device,
       config_.runtime.device == "auto" ? "the best device of this build" : "set by the user");
  Note("dtype", device_.dtype, config_.model.dtype == "auto" ? device_.dtype_reason : "set by the user");
  Note("cpu_precision", config_.model.cpu_precision,
       config_.model.cpu_precision == "auto" ? "weights of 16 bits or fewer are used as they are stored"
                                             : "set by the user");
  const int32_t wanted = config_.runtime.cpu_threads;
  out_.num_threads = wanted > 0 ? wanted : std::max(1, device_.usable_cores);
  std::string reason = "every physical core that affinity and CPU quota allow";
  if (wanted > 0) reason = "set by the user";
  if (wanted > device_.usable_cores) reason += "; more than the " + Str(device_.usable_cores) + " usable cores";
  const int64_t ranks = int64_t{config_.parallel.tensor_parallel_size} * config_.parallel.pipeline_parallel_size;
  if (ranks > 1) reason += "; shared by " + Str(ranks) + " ranks";
  Note("num_threads", Str(out_.num_threads), reason);
}

Status Resolver::ResolveMaxModelLen() {
  const auto wanted = config_.model.max_model_len;
  const int32_t limit = model_.max_position_embeddings;
  if (!wanted && limit <= 0) {
    return Status::InvalidArgument("max_model_len must be set: the model does not name its context length");
  }
  if (wanted && limit > 0 && *wanted > limit) {
    return Status::InvalidArgument("max_model_len must be at most " + Str(limit) +
                                   ", the model's context length, got " + Str(*wanted));
  }
  out_.sched.max_model_len = wanted.value_or(limit);
  Note("max_model_len", Str(out_.sched.max_model_len), wanted ? "set by the user" : "the model's context length");
  return Status::Ok();
}

// tokens >= seqs; tokens >= max_model_len without chunked prefill; tokens <= seqs * max_model_len. Derived values
// move to keep the rules, two values of the user that contradict each other are refused.
Status Resolver::ResolveBatch() {
  const SchedulerOptions& user = config_.scheduler;
  const int32_t max_len = out_.sched.max_model_len;
  int64_t seqs = user.max_num_seqs.value_or(kDefaultMaxNumSeqs);
  int64_t tokens = user.max_num_batched_tokens.value_or(device_.device == "cpu" ? kDefaultMaxBatchedTokens
                                                                                : kDefaultMaxBatchedTokensGpu);
  std::string seqs_reason = user.max_num_seqs ? "set by the user" : "the default on " + device_.device;
  std::string tokens_reason = user.max_num_batched_tokens ? "set by the user" : "the default on " + device_.device;

  if (!user.enable_chunked_prefill && tokens < max_len) {
    if (user.max_num_batched_tokens) {
      return Status::InvalidArgument("max_num_batched_tokens must be at least max_model_len (" + Str(max_len) +
                                     ") when enable_chunked_prefill is false, got " + Str(tokens));
    }
    tokens = max_len;
    tokens_reason = "max_model_len, because prompts are not split";
  }
  if (seqs > tokens) {
    if (user.max_num_seqs && user.max_num_batched_tokens) {
      return Status::InvalidArgument("max_num_seqs must be at most max_num_batched_tokens (" + Str(tokens) + "), got " +
                                     Str(seqs));
    }
    if (user.max_num_seqs) {
      tokens = seqs;
      tokens_reason = "max_num_seqs, so that every running request can get a token";
    } else {
      seqs = tokens;
      seqs_reason = "max_num_batched_tokens: a step cannot hold more requests than tokens";
    }
  }
  if (tokens > seqs * max_len) {
    tokens = seqs * max_len;
    tokens_reason = "max_num_seqs * max_model_len: a step cannot hold more";
  }
  out_.sched.max_num_seqs = static_cast<int32_t>(seqs);
  out_.sched.max_num_batched_tokens = static_cast<int32_t>(tokens);
  Note("max_num_seqs", Str(seqs), seqs_reason);
  Note("max_num_batched_tokens", Str(tokens), tokens_reason);
  return Status::Ok();
}

void Resolver::ResolvePolicies() {
  const SchedulerOptions& user = config_.scheduler;
  SchedConfig& sched = out_.sched;
  sched.long_prefill_token_threshold = user.long_prefill_token_threshold;
  sched.max_num_mixed_prefill_tokens = user.max_num_mixed_prefill_tokens.value_or(0);
  sched.long_prefill_fair_share = user.long_prefill_fair_share;
  sched.enable_chunked_prefill = user.enable_chunked_prefill;
  sched.async_scheduling = user.async_scheduling;
  sched.policy = user.scheduling_policy == "priority" ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
  sched.watermark = user.watermark;
  sched.max_num_queued_reqs = user.max_num_queued_reqs.value_or(0);
  sched.max_num_queued_tokens = user.max_num_queued_tokens.value_or(0);
  sched.request_timeout_ms = user.request_timeout_ms.value_or(0);
  sched.max_queue_ms = user.max_queue_time_ms.value_or(0);
  sched.pipeline_stages = config_.parallel.pipeline_parallel_size;
}

Status Resolver::CheckAvailable(const char* name, int64_t value, int64_t bytes) const {
  if (device_.available_bytes <= 0 || bytes <= device_.available_bytes) return Status::Ok();
  return Status::ResourceExhausted(std::string(name) + " " + Str(value) + " needs " + Str(bytes) + " bytes, " +
                                   Str(device_.available_bytes) + " are available");
}

Result<int64_t> Resolver::BlocksFromBudget(std::string* reason) const {
  const auto wanted = config_.cache.kv_cache_memory_bytes;
  const int64_t share = device_.available_bytes / 100 * kDefaultKvPercent;
  const bool given = device_.kv_budget_bytes > 0;
  const int64_t budget = wanted.value_or(given ? device_.kv_budget_bytes : std::min(kDefaultKvBytesCap, share));
  if (wanted) {
    *reason = "kv_cache_memory_bytes = " + Str(budget);
  } else {
    *reason = "budget of " + Str(budget) + " bytes, " +
              (given ? device_.kv_budget_reason
                     : "the smaller of 4 GiB and 40% of the " + Str(device_.available_bytes) + " available bytes");
  }
  if (wanted) FASTLLM_RETURN_IF_ERROR(CheckAvailable("kv_cache_memory_bytes", budget, budget));
  const int64_t blocks = budget / model_.kv_bytes_per_block;
  if (blocks < 2) {
    return Status::ResourceExhausted("the KV cache needs at least " + Str(2 * model_.kv_bytes_per_block) +
                                     " bytes (two blocks of " + Str(model_.kv_bytes_per_block) +
                                     ", one of them the null block); got " + *reason);
  }
  return blocks;
}

Status Resolver::ResolveKvBlocks() {
  if (model_.kv_bytes_per_block <= 0) {
    return Status::Internal("kv_bytes_per_block is " + Str(model_.kv_bytes_per_block));
  }
  const int64_t block_size = config_.cache.block_size;
  // Token positions of the pool are counted in 32 bits.
  const int64_t most = std::numeric_limits<int32_t>::max() / block_size;
  std::string reason = "num_gpu_blocks_override";
  int64_t blocks = 0;
  if (config_.cache.num_gpu_blocks_override) {
    blocks = *config_.cache.num_gpu_blocks_override;
    if (blocks > most) {
      return Status::InvalidArgument("num_gpu_blocks_override must be at most " + Str(most) + " with block_size " +
                                     Str(block_size) + ", got " + Str(blocks));
    }
    if (blocks > std::numeric_limits<int64_t>::max() / model_.kv_bytes_per_block) {
      return Status::ResourceExhausted("num_gpu_blocks_override " + Str(blocks) +
                                       " needs more bytes than 64 bits count");
    }
    FASTLLM_RETURN_IF_ERROR(CheckAvailable("num_gpu_blocks_override", blocks, blocks * model_.kv_bytes_per_block));
  } else {
    FASTLLM_ASSIGN_OR_RETURN(blocks, BlocksFromBudget(&reason));
    const int64_t per_request = (out_.sched.max_model_len + block_size - 1) / block_size;
    const int64_t useful = std::min(most, out_.sched.max_num_seqs * per_request + 1);
    if (blocks > useful) {
      blocks = useful;
      reason = "all that max_num_seqs requests of max_model_len tokens can use; " + reason;
    }
  }
  out_.kv.num_blocks = static_cast<int32_t>(blocks);
  const int64_t capacity = (blocks - 1) * block_size;
  Note("num_kv_blocks", Str(blocks), reason);
  const std::string& dtype = config_.cache.kv_cache_dtype;
  const bool quantized = model_.has_quantized_weights;
  Note("kv_cache_dtype",
       dtype != "auto" ? dtype
       : quantized     ? "bfloat16"
                       : device_.dtype,
       dtype != "auto" ? "set by the user"
       : quantized     ? "the weights have 16 bits or fewer"
                       : "the weights are " + device_.dtype);
  Note("kv_cache_bytes", Str(blocks * model_.kv_bytes_per_block),
       "num_kv_blocks of " + Str(model_.kv_bytes_per_block) + " bytes");
  Note("kv_capacity_tokens", Str(capacity),
       capacity < out_.sched.max_model_len
           ? "blocks without the null block, times block_size; less than max_model_len, so it limits requests"
           : "blocks without the null block, times block_size");
  return Status::Ok();
}

void Resolver::ResolveCache() {
  out_.kv.block_size = config_.cache.block_size;
  out_.kv.enable_prefix_caching = config_.cache.enable_prefix_caching;
  out_.kv.prefix_hash_algo =
      config_.cache.prefix_caching_hash_algo == "sha256" ? PrefixHashAlgo::kSha256 : PrefixHashAlgo::kXxHash;
  out_.kv.kv_event_capacity = config_.cache.kv_events_buffer_size;
  // One step in flight and the next.
  const int64_t step_tokens = int64_t{2} * out_.sched.max_num_batched_tokens;
  out_.kv.max_step_tokens = static_cast<int32_t>(std::min<int64_t>(step_tokens, std::numeric_limits<int32_t>::max()));
}

}  // namespace

Result<ResolvedConfig> Resolve(const EngineConfig& config, const ModelFacts& model, const DeviceFacts& device) {
  FASTLLM_ASSIGN_OR_RETURN(ResolvedConfig resolved, ResolveLimits(config, model, device));
  FASTLLM_RETURN_IF_ERROR(ResolveKvBlocks(config, model, device, &resolved));
  return resolved;
}

Result<ResolvedConfig> ResolveLimits(const EngineConfig& config, const ModelFacts& model, const DeviceFacts& device) {
  return Resolver(config, model, device).Limits();
}

Status ResolveKvBlocks(const EngineConfig& config, const ModelFacts& model, const DeviceFacts& device,
                       ResolvedConfig* resolved) {
  FASTLLM_ASSIGN_OR_RETURN(*resolved, Resolver(config, model, device, std::move(*resolved)).KvBlocks());
  return Status::Ok();
}

}  // namespace fastllm
