// EngineStats. Plain data.
#pragma once

#include <cstdint>

namespace fastllm {

// A snapshot of the engine's state, written once per step and read without a lock. Counts of work and times go up from
// the engine's start, so that the difference of two snapshots is what lay between; `last_` is of the newest step alone.
// Times are nanoseconds.
struct EngineStats {
  int64_t steps = 0;
  int64_t running = 0;
  int64_t waiting = 0;            // all that wait
  int64_t waiting_paused = 0;     // of these, came while the engine was paused
  int64_t waiting_preempted = 0;  // of these, ran before and lost their blocks; the rest wait for room
  int64_t queued_tokens = 0;      // of all that wait
  int64_t used_blocks = 0;        // blocks that some request holds
  int64_t total_blocks = 0;       // without the null block
  int64_t preemptions = 0;
  int64_t prefix_query_tokens = 0;
  int64_t prefix_hit_tokens = 0;
  int64_t scheduled_tokens = 0;
  int64_t prompt_tokens = 0;  // of requests that have come into a step
  int64_t generation_tokens = 0;
  int64_t finished_requests = 0;
  int64_t finished_stop = 0;  // of these, by their finish_reason
  int64_t finished_length = 0;
  int64_t finished_abort = 0;
  int64_t finished_error = 0;
  int64_t schedule_ns = 0;  // Schedule() and handing the plan over
  int64_t execute_ns = 0;   // the executor, from the later of hand-over and the step before to the result
  int64_t wait_ns = 0;      // of that, what the engine thread had nothing else to do
  int64_t update_ns = 0;    // stops, detokenization, deltas
  int64_t last_step_requests = 0;
  int64_t last_step_tokens = 0;
  int64_t last_schedule_ns = 0;
  int64_t last_execute_ns = 0;
  int64_t last_update_ns = 0;
  int64_t heartbeat = 0;  // rounds of the engine thread
  int64_t paused = 0;     // 1 while paused
  int64_t asleep = 0;     // 1 while asleep

  // used_blocks / total_blocks
  double kv_cache_usage() const {
    return total_blocks > 0 ? static_cast<double>(used_blocks) / static_cast<double>(total_blocks) : 0.0;
  }
};

}  // namespace fastllm
