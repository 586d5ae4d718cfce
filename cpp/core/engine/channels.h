// EngineChannels: all that the engine thread shares with other threads.
#pragma once

#include "core/config/resolved.h"
#include "core/engine/heartbeat.h"
#include "core/engine/inbox.h"
#include "core/engine/outbox.h"
#include "core/engine/stats_cell.h"

namespace fastllm {

struct EngineChannels {
  explicit EngineChannels(const SchedConfig& sched) : inbox(sched.max_num_queued_reqs, sched.max_num_queued_tokens) {}

  Inbox inbox;
  Outbox outbox;
  StatsCell stats;
  Heartbeat heartbeat;
};

}  // namespace fastllm
