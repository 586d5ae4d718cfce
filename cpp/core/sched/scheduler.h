// Scheduler: decides which tokens of which sequences run in the next step. Owns the sequences and, through
// kv/, their blocks. Contracts: cpp/docs/contract.md, section "scheduler". Engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "core/config/resolved.h"
#include "core/kv/extra_keys.h"
#include "core/kv/kv_events.h"
#include "core/kv/pin_table.h"
#include "core/kv/prefix_cache_stats.h"
#include "core/request/request.h"
#include "core/step/step_plan.h"
#include "core/step/step_result.h"
#include "fastllm/output.h"
#include "fastllm/status.h"

namespace fastllm {

// What one step did to one sequence.
struct SequenceUpdate {
  RequestId id = 0;
  std::vector<TokenId> new_tokens;  // the stop token included
  FinishReason finish_reason = FinishReason::kNone;
  StopReason stop_reason;  // a token id when one of stop_token_ids matched
  int32_t num_cached_tokens = 0;
  int32_t result_row = 0;  // where in StepResult::rows its tokens came from
};

struct SchedulerStats {
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t waiting_preempted = 0;  // of these, ran before
  int32_t used_blocks = 0;        // blocks with a reference; the null block is not counted
  int32_t free_blocks = 0;
  int64_t preemptions = 0;
  int64_t prefix_query_tokens = 0;
  int64_t prefix_hit_tokens = 0;
  int64_t scheduled_tokens = 0;
  int64_t prefix_lookups = 0;  // of waiting sequences
  int64_t queued_tokens = 0;   // of the waiting
};

// A request that ran out of time.
struct ExpiredRequest {
  RequestId id = 0;
  StatusCode code = StatusCode::kDeadlineExceeded;  // kResourceExhausted: it was still queued at its queue-time limit
  std::string reason;                               // "not finished after 1003 ms (limit 1000 ms)"
};

class Scheduler {
 public:
  // The clock counts milliseconds; it serves arrivals, deadlines and pins.
  Scheduler(const SchedConfig& sched, const KvConfig& kv, const KvClock& clock = SteadyClockMs);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Queues a validated request. kInvalidArgument when prompt + max_tokens can never fit in the pool. How many may wait
  // is for the caller to say (core/engine/inbox.h): what it has accepted must not be refused here.
  Status Add(std::shared_ptr<const Request> request);

  // Ends a sequence from outside (abort, stop string) in whatever state it is; frees its blocks. False when unknown.
  bool Finish(RequestId id);

  // Ends the requests whose time is up: timeout_ms since their arrival, or max_queue_ms before their first step. To be
  // called before each Schedule(). O(1) while nothing is due.
  std::vector<ExpiredRequest> Expire();

  // Plans the next step. With async_scheduling the result of the plan before may still be missing: a sequence whose
  // token is in flight is planned all the same, and the executor takes the token from its own copy. An empty plan (no
  // rows) means that there is nothing to run now, or that max_in_flight() plans wait for their Update().
  StepPlan Schedule();
  // The same into a plan that nobody needs any more: with one that was used before, a steady state allocates nothing.
  void ScheduleInto(StepPlan* plan);

  // Applies the result of the oldest plan without one: appends tokens, checks token-level stops, frees finished
  // sequences. Sequences that have ended meanwhile are skipped, so a row planned behind a stop has no effect.
  std::vector<SequenceUpdate> Update(const StepPlan& plan, const StepResult& result);
  // The same into a vector whose elements are used again.
  void UpdateInto(const StepPlan& plan, const StepResult& result, std::vector<SequenceUpdate>* updates);

  // Plans that may wait for their Update(): one for each pipeline stage, and one more with async_scheduling.
  int32_t max_in_flight() const;
  bool HasWork() const;  // something waits or runs
  SchedulerStats stats() const;

  // Forgets all cached prefixes. False while any sequence holds blocks.
  bool ResetPrefixCache();
  // As KvManager's: the hit that a request would get now, without side effects; a pin of what is cached of a prefix.
  int32_t CountCachedTokens(std::span<const TokenId> tokens, const ExtraKeys& keys) const;
  Result<int32_t> PinPrefix(std::span<const TokenId> tokens, const ExtraKeys& keys, int32_t priority, int64_t ttl_ms);
  PrefixCacheStats prefix_cache_stats() const;
  // For one reader thread; lives as long as the scheduler. Null when KV events are off.
  KvEventRing* kv_events() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastllm
