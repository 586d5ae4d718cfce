// The order in which ranks that are threads of one process join over their devices, whatever connects these.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "fastllm/status.h"
#include "ops/contract/device.h"
#include "runtime/comm/ranks.h"
#include "runtime/device/peer_communicator.h"

namespace fastllm::runtime {

struct JoinPlan {
  // Makes a communicator over the devices: on all ranks at one time, after all have met over ranks.host.
  std::function<Result<std::shared_ptr<Communicator>>(const Ranks& ranks)> connect;
  PeerOptions peers;
  std::chrono::milliseconds timeout{300000};  // for the first sums on the device
  AnnounceFn announce = nullptr;
};

// On the thread of each rank, at one time; ranks->host has the ranks of ranks->tensor. Asks the device for all that it
// needs, meets the others, connects, makes calls of several sizes, so that what a first call sets up is there, and puts
// a communicator of the plan in place of ranks->tensor.
//
// A rank that fails before the others wait for it on a device keeps nobody; one that fails later, or does not come,
// ends the others' waits: by ranks.host, which who is told of the failure breaks, or by the timeout. kDeadlineExceeded
// names the rank whose device does not come to its end even when it is told not to wait. That one leaves behind what
// its device may still use. Throws what the device throws.
Status JoinRanks(const ops::DeviceApi& device, const JoinPlan& plan, Ranks* ranks);

}  // namespace fastllm::runtime
