// Engine: the whole inference engine behind one handle, for C++ hosts and for the Python binding.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fastllm/config.h"
#include "fastllm/engine_stats.h"
#include "fastllm/export.h"
#include "fastllm/extra_keys.h"
#include "fastllm/kv_events.h"
#include "fastllm/logits_processor.h"
#include "fastllm/output.h"
#include "fastllm/replica.h"
#include "fastllm/sampling_params.h"
#include "fastllm/status.h"
#include "fastllm/token_table.h"

namespace fastllm {

// One prompt to continue.
struct GenerationRequest {
  std::vector<int32_t> prompt_token_ids;  // at least one, each in [0, vocab_size)
  SamplingParams sampling;
  ExtraKeys extra_keys;             // requests share cached prefixes only under equal keys
  int32_t priority = 0;             // lower comes first; other than 0 only with scheduling_policy "priority"
  int64_t timeout_ms = 0;           // since Submit(), for the whole request; 0: EngineConfig's request_timeout_ms
  int64_t max_queue_time_ms = 0;    // since Submit(), until its first step; 0: EngineConfig's
  int32_t data_parallel_rank = -1;  // the replica that must take it; -1: the one that suits it best
  std::string session_id;           // requests of one session go to one replica while its load allows; "": none
};

// One derived value of the resolved configuration.
struct ResolvedValue {
  std::string name;
  std::string value;
  std::string reason;
};

// Facts of a loaded engine.
struct EngineInfo {
  std::string architecture;  // "LlamaForCausalLM"
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;
  int32_t num_kv_blocks = 0;  // the null block included
  int32_t block_size = 0;
  std::vector<int32_t> eos_token_ids;
  SamplingParams default_sampling_params;            // with what the model states (EngineConfig's generation_config)
  std::vector<std::string> default_sampling_fields;  // the fields that it states
  int32_t max_logprobs = 0;                          // alternatives that a request may ask for; -1: no limit
  std::vector<ResolvedValue> resolved;
  std::vector<std::pair<std::string, double>> startup_seconds;  // phase, seconds
};

// What happens at Engine::Pause() to the requests that are there.
enum class PauseMode : uint8_t {
  kAbort = 0,  // they end with finish_reason kAbort
  kWait,       // they run to their end
  kKeep,       // they stay as they are, blocks included, and go on after Resume()
};

// Thread-safe. Destroying the engine aborts what runs and joins its threads. In a child of fork(), which has no copy of
// those threads, Submit() and health() give kFailedPrecondition and the other calls do nothing.
class FASTLLM_API Engine {
 public:
  // Loads the model and starts the engine thread. `tokens` enables text output and stop strings; when absent, a
  // table is made from the model file if it carries one (GGUF does). Logits processors need device cpu. Errors: what
  // is wrong with which value.
  static Result<std::unique_ptr<Engine>> Create(const EngineConfig& config, std::optional<TokenTable> tokens = {},
                                                std::vector<std::shared_ptr<LogitsProcessor>> logits_processors = {});
  virtual ~Engine() = default;

  // Queues a request and returns its handle, never 0. Errors: kInvalidArgument for values out of range (empty
  // prompt, id out of vocabulary, prompt longer than the context or the KV pool, bad sampling values),
  // kResourceExhausted with retry_after_ms() when the queue is full (max_num_queued_reqs, max_num_queued_tokens),
  // kUnavailable when the engine is stopped or poisoned.
  virtual Result<uint64_t> Submit(GenerationRequest request) = 0;

  // What Submit() would find wrong with the values of the request (kInvalidArgument).
  virtual Status Validate(const GenerationRequest& request) const = 0;

  // Ends a request with all of its outputs; their last deltas have finish_reason kAbort. Unknown or finished handles
  // are ignored.
  virtual void Abort(uint64_t request_id) = 0;

  // Moves all pending deltas out, waiting up to `timeout` for the first. Empty on time-out.
  virtual std::vector<RequestDelta> Drain(std::chrono::milliseconds timeout) = 0;

  // The same into a vector whose old deltas the engine fills again: with one that was drained into before, a steady
  // load makes the engine allocate no memory.
  virtual void DrainInto(std::chrono::milliseconds timeout, std::vector<RequestDelta>* deltas) = 0;

  // An eventfd that becomes readable when deltas are pending, and when the engine has ended;
  // Drain(0ms) resets it. Owned by the engine.
  virtual int event_fd() const = 0;

  virtual const EngineInfo& info() const = 0;
  virtual EngineStats stats() const = 0;

  // kOk while the engine serves; otherwise why it does not: shut down, draining, poisoned by a failure, or stalled:
  // work is there and the engine thread has not come round for EngineConfig's stall_timeout_s.
  virtual Status health() const = 0;

  // Returns when the engine is quiet: no step runs and, but for kKeep, no request is left from before. Requests that
  // come while it is paused are accepted and held until Resume(); they may be aborted. kFailedPrecondition when
  // Resume() came first, kUnavailable when the engine ended.
  virtual Status Pause(PauseMode mode) = 0;
  // Does nothing when the engine is not paused; kFailedPrecondition while it is asleep.
  virtual Status Resume() = 0;

  // Frees device memory of a paused engine whose requests hold no blocks. Level 1 keeps the weights in host memory, 2
  // drops them; both drop the KV cache and the cached prefixes. kUnimplemented when the executor cannot.
  virtual Status Sleep(int32_t level) = 0;
  // Brings back what `tags` name ("weights", "kv_cache"; none: everything). The engine stays paused.
  virtual Status Wake(const std::vector<std::string>& tags) = 0;

  // Forgets all cached prefixes. kFailedPrecondition while a request holds blocks.
  virtual Status ResetPrefixCache() = 0;

  // How many tokens of a prompt a request would find in the prefix cache now: whole blocks, and at most all but the
  // last token. The answer comes between two steps.
  virtual Result<int32_t> CountCachedTokens(std::vector<int32_t> prompt_token_ids, ExtraKeys extra_keys) = 0;
  // Pins what is cached of a prefix (whole blocks) and returns its tokens: its blocks are taken only when no free block
  // of a lower priority is left. The pin ends after ttl_ms (0: never), when its blocks are taken after all, or by
  // priority 0. kInvalidArgument for a priority outside [0, 63] or a negative ttl.
  virtual Result<int32_t> PinPrefix(std::vector<int32_t> prompt_token_ids, ExtraKeys extra_keys, int32_t priority,
                                    int64_t ttl_ms) = 0;

  // Takes the oldest KV events, `most` at most; none unless EngineConfig's kv_events_buffer_size is set. No lock that
  // the engine thread takes.
  virtual KvEventBatch DrainKvEvents(size_t most) = 0;

  // Refuses new requests from now on (kUnavailable), lets those that are there run for up to `timeout`, ends a pause
  // for that, then does Shutdown(). True when all of them came to their own end.
  virtual bool DrainAndShutdown(std::chrono::milliseconds timeout) = 0;

  // Aborts everything, delivers the last deltas, joins the threads. Idempotent.
  virtual void Shutdown() = 0;

  // Returns when requests are taken: at once, or when a replica that failed has been made anew. health() where nothing
  // is made anew, kDeadlineExceeded after `timeout`, kUnavailable when the engine is shut down meanwhile.
  virtual Status AwaitServing(std::chrono::milliseconds /*timeout*/) { return health(); }

  // ---- With data_parallel_size > 1. A request whose replica fails ends with an error; the others go on. ----

  virtual std::vector<ReplicaInfo> replicas() const {
    ReplicaInfo only;
    only.stats = stats();
    return {only};
  }
  // The replica takes no more requests; what it has runs to its end. kInvalidArgument for a number that is none.
  virtual Status DrainReplica(int32_t replica) { return NoReplica(replica); }
  // It takes requests again. kFailedPrecondition for one that has failed.
  virtual Status ResumeReplica(int32_t replica) { return NoReplica(replica); }
  // Makes a drained replica anew, in the background: its weights are read again. kFailedPrecondition for another.
  virtual Status RestartReplica(int32_t replica) { return NoReplica(replica); }

 private:
  static Status NoReplica(int32_t replica) {
    return Status::InvalidArgument("there is no replica " + std::to_string(replica) + ": data_parallel_size is 1");
  }
};

}  // namespace fastllm
