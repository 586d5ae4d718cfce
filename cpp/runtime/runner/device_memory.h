// What a model takes of a device's memory, measured while it is loaded.
#pragma once

#include <cstdint>
#include <string>

namespace fastllm::runtime {

struct DeviceMemoryUse {
  std::string device;               // "NVIDIA H200"
  int64_t total_bytes = 0;          // of the device
  int64_t free_bytes_at_start = 0;  // before anything of this engine
  int64_t weight_bytes = 0;
  int64_t activation_bytes = 0;     // buffers of the largest step
  int64_t staging_bytes = 0;        // what a step brings over, tables, ids, attention workspace
  int64_t other_bytes = 0;          // contexts, kernels, libraries: what else was taken up to the end of the dry steps
  int64_t graph_reserve_bytes = 0;  // set aside for captured graphs
  int64_t tally_reserve_bytes = 0;  // set aside for the counts of sequences with penalties; see DeviceRunner
  int64_t free_bytes = 0;           // now

  // What is set aside and not yet taken.
  int64_t reserve_bytes() const { return graph_reserve_bytes + tally_reserve_bytes; }
};

}  // namespace fastllm::runtime
