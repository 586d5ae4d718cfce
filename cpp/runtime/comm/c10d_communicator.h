// Communicators over c10d, torch's process groups (gloo), for groups that span nodes.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "fastllm/status.h"
#include "runtime/comm/communicator.h"

namespace fastllm::runtime {

// The group that is registered under `name` in this process, which torch.distributed does for those that it makes.
// names: of the ranks, for messages. kNotFound when there is none, kInternal when it has another size. Sums are added
// on each rank, in rank order, from what all have sent: the same bits as in memory, at the price of more bytes than a
// ring would send. Calls that differ between ranks are not found out here.
Result<std::shared_ptr<Communicator>> MakeC10dCommunicator(const std::string& name, std::vector<std::string> names);

// Where the processes of such groups find each other: a TCPStore, served by this process as long as this lives.
class GroupStore {
 public:
  virtual ~GroupStore() = default;
  virtual int32_t port() const = 0;
};
Result<std::unique_ptr<GroupStore>> ServeGroupStore(std::chrono::milliseconds timeout);

}  // namespace fastllm::runtime
