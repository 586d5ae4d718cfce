// How the CPU ops spread their work over the team of the calling thread (team.h). A region costs up to a microsecond,
// so each op passes the work it has (in units of about one nanosecond) and gets the threads that this pays for.
// Bodies must not throw.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "ops/cpu/team.h"

namespace fastllm::ops::cpu {

// Work, in nanoseconds of one core, that one more thread must take over to be worth its place.
inline constexpr int64_t kMinWorkPerThread = 1500;

// Threads for `items` independent items of `work` nanoseconds in all.
inline int32_t TeamSize(int64_t items, int64_t work, int32_t num_threads) {
  const int64_t by_work = work / kMinWorkPerThread;
  return static_cast<int32_t>(std::max<int64_t>(1, std::min<int64_t>({num_threads, items, by_work})));
}

// The share of thread `index` of `count` in [0, items).
struct Share {
  int64_t begin;
  int64_t end;
};
inline Share ShareOf(int64_t items, int32_t index, int32_t count) {
  return {items * index / count, items * (index + 1) / count};
}

// body(begin, end) over [0, items) in contiguous equal shares. For items of equal cost.
template <typename Body>
void ParallelRanges(int64_t items, int64_t work, int32_t num_threads, const Body& body) {
  if (items <= 0) return;
  const int32_t team = TeamSize(items, work, num_threads);
  if (team <= 1) return body(int64_t{0}, items);
  Team::OfThisThread().Run(team, work, [&](const Team::Member& member) {
    const Share share = ShareOf(items, member.index(), member.count());
    if (share.begin < share.end) body(share.begin, share.end);
  });
}

// body(item, thread) for each item of [0, items), taken one at a time by at most `team` threads (from TeamSize). For
// items of unequal cost; put the costly ones first.
template <typename Body>
void ParallelItems(int64_t items, int64_t work, int32_t team, const Body& body) {
  if (team <= 1) {
    for (int64_t i = 0; i < items; ++i) body(i, 0);
    return;
  }
  std::atomic<int64_t> next{0};
  Team::OfThisThread().Run(team, work, [&](const Team::Member& member) {
    for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < items;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      body(i, member.index());
    }
  });
}

}  // namespace fastllm::ops::cpu
