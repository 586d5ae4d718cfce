// Tensor ranks that are threads of one process and have a device each.
#pragma once

#include <chrono>
#include <cstdint>

#include "fastllm/status.h"
#include "runtime/comm/ranks.h"
#include "runtime/tensor/placement.h"

namespace fastllm::runtime {

// Whether this build and machine have a device for each of `tensor` ranks. kInvalidArgument with both numbers, and
// kUnimplemented for a build that cannot.
Status CheckDeviceRanks(const Placement& placement, int32_t tensor);

struct DeviceRanksOptions {
  Placement placement;
  // The largest step's activations: rows, and bytes of each.
  int64_t rows = 0;
  int64_t row_bytes = 0;
  std::chrono::milliseconds timeout{300000};  // for the first sums on the devices
};

// On the thread of each rank, at one time: makes device ranks->topology.rank the current one of the thread, and puts a
// communicator over the devices in place of ranks->tensor (small sums, and of two ranks those with a norm, straight
// into the peers' memory where the devices reach each other, all else by NCCL), which is used to find the others and
// stays as ranks->host. Nothing to do for one rank. Everything that a first call would have to set up is done when it
// returns. `announce` is told of communicators from which a failure of another rank has to free this one meanwhile; may
// be null. Errors are those of NCCL and the driver; see JoinRanks() for what a rank that fails or hangs does to the
// others.
Status JoinDeviceRanks(const DeviceRanksOptions& options, Ranks* ranks, const AnnounceFn& announce = nullptr);

}  // namespace fastllm::runtime
