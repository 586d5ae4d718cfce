// Counts calls of operator new in this test program while a counter lives (alloc_counter.cc replaces it).
#pragma once

#include <cstdint>

namespace fastllm {

class AllocCounter {
 public:
  AllocCounter();
  ~AllocCounter();
  AllocCounter(const AllocCounter&) = delete;
  AllocCounter& operator=(const AllocCounter&) = delete;

  // Of this thread since the counter was made.
  int64_t count() const;
};

}  // namespace fastllm
