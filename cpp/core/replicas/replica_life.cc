#include "core/replicas/replica_life.h"

namespace fastllm {
namespace {

using S = EngineStats;

constexpr int64_t S::*kCounts[] = {
    &S::steps,          &S::preemptions,       &S::prefix_query_tokens, &S::prefix_hit_tokens, &S::scheduled_tokens,
    &S::prompt_tokens,  &S::generation_tokens, &S::finished_requests,   &S::finished_stop,     &S::finished_length,
    &S::finished_abort, &S::finished_error,    &S::schedule_ns,         &S::execute_ns,        &S::wait_ns,
    &S::update_ns,      &S::heartbeat,
};
constexpr int64_t S::*kGauges[] = {
    &S::running,       &S::waiting,     &S::waiting_paused, &S::waiting_preempted,
    &S::queued_tokens, &S::used_blocks, &S::total_blocks,
};

}  // namespace

void AddCounts(const EngineStats& more, EngineStats* sum) {
  for (const auto member : kCounts) sum->*member += more.*member;
}

void AddStats(const EngineStats& more, EngineStats* sum) {
  AddCounts(more, sum);
  for (const auto member : kGauges) sum->*member += more.*member;
}

EngineStats EngineGroup::Replica::Stats() const {
  EngineStats stats;
  if (life->engine != nullptr) {
    if (IsUp()) {
      stats = life->engine->stats();
    } else {
      AddCounts(life->engine->stats(), &stats);
    }
  }
  AddCounts(info.stats, &stats);
  return stats;
}

}  // namespace fastllm
