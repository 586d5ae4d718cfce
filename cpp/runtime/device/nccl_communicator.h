// Communicators over NCCL, for ranks that have a GPU each. Only in builds with CUDA.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fastllm/status.h"
#include "runtime/comm/communicator.h"

namespace fastllm::runtime {

// What the ranks of a group find each other by: made by one of them and told to all by other means.
using NcclId = std::array<char, 128>;
// kUnimplemented when the process has no NCCL (libnccl.so.2, which a CUDA torch brings) or one before 2.14.
Result<NcclId> MakeNcclId();

// Joins the group; all of its `names.size()` ranks must, at the same time, each with another device as the current one
// of its thread. names[r] is what rank r is called in errors.
//
// Calls go on the stream of their context and can be captured in a CUDA graph, Barrier() too. Sums are in NCCL's own
// order, which is the same in every run, and of 16-bit types rounded at each step. An error that NCCL notices later is
// given by the next call. There is no timeout: who waits for the stream's events keeps the time and calls Abort().
// Graphs that hold calls are destroyed before the communicator, which otherwise waits for that.
Result<std::unique_ptr<Communicator>> MakeNcclCommunicator(const NcclId& id, int32_t rank,
                                                           std::vector<std::string> names);

}  // namespace fastllm::runtime
