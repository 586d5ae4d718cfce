// Sizes at which cuBLASLt is asked for an algorithm.
#pragma once

#include <cstdint>
#include <vector>

namespace fastllm::runtime {

// The number of rows that stands for `rows`: the next multiple of 16 up to 256, of 32 up to 1,024, of 64 up to 2,048,
// of 128 up to 4,096, of 256 beyond. Steps with prefill have any number of rows; to ask about a product takes 0.2 ms,
// and the answer may be a kernel that must be loaded first, in 2 to 4 ms (bench/RESULTS.md, "Bursts").
inline int32_t PlanRows(int32_t rows) {
  int32_t step = 16;
  for (int32_t most = 256; rows > most && step < 256; most *= most == 256 ? 4 : 2) step *= 2;
  return (rows + step - 1) / step * step;
}

// All of them above `above` up to the one that stands for `most`, ascending.
inline std::vector<int32_t> PlanSizes(int32_t above, int32_t most) {
  std::vector<int32_t> sizes;
  for (int32_t rows = above; rows < most;) {
    rows = PlanRows(rows + 1);
    sizes.push_back(rows);
  }
  return sizes;
}

}  // namespace fastllm::runtime
