// Ranks: a rank's place and whom it talks to; what a model runner is told of parallelism.
#pragma once

#include <functional>
#include <memory>

#include "runtime/comm/communicator.h"
#include "runtime/comm/topology.h"

namespace fastllm::runtime {

// A communicator is null where its group has one rank.
struct Ranks {
  RankTopology topology;
  std::shared_ptr<Communicator> tensor;    // TensorGroup(): its rank() is tp_rank()
  std::shared_ptr<Communicator> pipeline;  // PipelineGroup(): its rank() is the stage
  std::shared_ptr<Communicator> host;      // the tensor group over host memory, where `tensor` is over a device's
};

// Is told of a communicator that is to be aborted when a rank fails.
using AnnounceFn = std::function<void(std::shared_ptr<Communicator>)>;

}  // namespace fastllm::runtime
