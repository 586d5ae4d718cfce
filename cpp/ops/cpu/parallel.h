// The one place where the CPU ops start threads. A parallel region costs some microseconds, so each op passes the
// work it has (in units of about one nanosecond) and a region is opened only when the work pays for it.
// Bodies must not throw: an exception that leaves an OpenMP region ends the process.
#pragma once

#include <algorithm>
#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace fastllm::ops::cpu {

// Work, in nanoseconds of one core, that one more thread must take over to be worth waking.
inline constexpr int64_t kMinWorkPerThread = 20000;

// Threads for `items` independent items of `work` nanoseconds in all.
inline int32_t TeamSize(int64_t items, int64_t work, int32_t num_threads) {
  const int64_t by_work = work / kMinWorkPerThread;
  return static_cast<int32_t>(std::max<int64_t>(1, std::min<int64_t>({num_threads, items, by_work})));
}

// body(begin, end) over [0, items) in contiguous equal shares. For items of equal cost.
template <typename Body>
void ParallelRanges(int64_t items, int64_t work, int32_t num_threads, const Body& body) {
  if (items <= 0) return;
#ifdef _OPENMP
  const int32_t team = TeamSize(items, work, num_threads);
  if (team > 1) {
#pragma omp parallel num_threads(team)
    {
      const int64_t t = omp_get_thread_num();
      const int64_t n = omp_get_num_threads();
      const int64_t begin = items * t / n;
      const int64_t end = items * (t + 1) / n;
      if (begin < end) body(begin, end);
    }
    return;
  }
#else
  static_cast<void>(work);
  static_cast<void>(num_threads);
#endif
  body(0, items);
}

// body(item, thread) for each item of [0, items), taken one at a time by `team` threads (from TeamSize). For items of
// unequal cost; put the costly ones first.
template <typename Body>
void ParallelItems(int64_t items, int32_t team, const Body& body) {
#ifdef _OPENMP
  if (team > 1) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(team)
    for (int64_t i = 0; i < items; ++i) body(i, omp_get_thread_num());
    return;
  }
#else
  static_cast<void>(team);
#endif
  for (int64_t i = 0; i < items; ++i) body(i, 0);
}

}  // namespace fastllm::ops::cpu
