// How the op benchmarks measure.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>

namespace fastllm::ops {

inline double MicrosecondsOf(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

// Microseconds of one call: the best of 15 groups, each long enough for the clock; other work on the machine can only
// add to a group.
inline double Time(const std::function<void()>& f) {
  f();
  const int repeat = std::max(1, static_cast<int>(2000.0 / std::max(0.05, MicrosecondsOf(f))));
  double best = 1e300;
  for (int g = 0; g < 15; ++g) {
    best = std::min(best, MicrosecondsOf([&] {
                            for (int i = 0; i < repeat; ++i) f();
                          }) / repeat);
  }
  return best;
}

// The best of n calls, with prepare before each, outside the clock.
inline double BestOf(int n, const std::function<void()>& prepare, const std::function<void()>& f) {
  double best = 1e300;
  for (int i = 0; i < n; ++i) {
    prepare();
    best = std::min(best, MicrosecondsOf(f));
  }
  return best;
}

}  // namespace fastllm::ops
