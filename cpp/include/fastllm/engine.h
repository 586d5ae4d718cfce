// Engine: the whole inference engine behind one handle, for C++ hosts and for the Python binding.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fastllm/config.h"
#include "fastllm/export.h"
#include "fastllm/output.h"
#include "fastllm/sampling_params.h"
#include "fastllm/status.h"
#include "fastllm/token_table.h"

namespace fastllm {

// One prompt to continue.
struct GenerationRequest {
  std::vector<int32_t> prompt_token_ids;  // at least one, each in [0, vocab_size)
  SamplingParams sampling;
  std::string cache_salt;  // requests share cached prefixes only under the same salt
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
  std::vector<ResolvedValue> resolved;
  std::vector<std::pair<std::string, double>> startup_seconds;  // phase, seconds
};

// A snapshot of the engine's state, written once per step.
struct EngineStats {
  int64_t steps = 0;
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t used_blocks = 0;  // blocks that some request holds
  int64_t preemptions = 0;
  int64_t prefix_query_tokens = 0;
  int64_t prefix_hit_tokens = 0;
  int64_t scheduled_tokens = 0;
  int64_t finished_requests = 0;
};

// Thread-safe. Destroying the engine aborts what runs and joins its threads. In a child of fork(), which has no copy of
// those threads, Submit() and health() give kFailedPrecondition and the other calls do nothing.
class FASTLLM_API Engine {
 public:
  // Loads the model and starts the engine thread. `tokens` enables text output and stop strings; when absent, a
  // table is made from the model file if it carries one (GGUF does). Errors: what is wrong with which value.
  static Result<std::unique_ptr<Engine>> Create(const EngineConfig& config, std::optional<TokenTable> tokens = {});
  virtual ~Engine() = default;

  // Queues a request and returns its handle, never 0. Errors: kInvalidArgument for values out of range (empty
  // prompt, id out of vocabulary, prompt longer than the context or the KV pool, bad sampling values),
  // kUnavailable when the engine is stopped or poisoned.
  virtual Result<uint64_t> Submit(GenerationRequest request) = 0;

  // Ends a request; its last delta has finish_reason kAbort. Unknown or finished handles are ignored.
  virtual void Abort(uint64_t request_id) = 0;

  // Moves all pending deltas out, waiting up to `timeout` for the first. Empty on time-out.
  virtual std::vector<RequestDelta> Drain(std::chrono::milliseconds timeout) = 0;

  // An eventfd that becomes readable when deltas are pending; Drain(0ms) resets it. Owned by the engine.
  virtual int event_fd() const = 0;

  virtual const EngineInfo& info() const = 0;
  virtual EngineStats stats() const = 0;

  // kOk while the engine serves; otherwise why it does not.
  virtual Status health() const = 0;

  // Aborts everything, delivers the last deltas, joins the threads. Idempotent.
  virtual void Shutdown() = 0;
};

}  // namespace fastllm
