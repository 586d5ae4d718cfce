#include "runtime/device/device_ranks.h"

#include <string>

#include "ops/table/device.h"

#if defined(FASTLLM_CUDA) && defined(FASTLLM_NCCL)
#include <c10/cuda/CUDAFunctions.h>

#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/device/join_ranks.h"
#include "runtime/device/nccl_communicator.h"
#endif

namespace fastllm::runtime {

Status CheckDeviceRanks(const Placement& placement, int32_t tensor) {
  const ops::DeviceApi* devices = ops::FindDevice(placement.device);
  const int32_t count = devices == nullptr ? 0 : devices->count();
  if (tensor > count) {
    return Status::InvalidArgument("tensor_parallel_size is " + std::to_string(tensor) + "; on device cuda each rank " +
                                   "needs a GPU of its own, and this process sees " + std::to_string(count));
  }
#if !defined(FASTLLM_CUDA) || !defined(FASTLLM_NCCL)
  if (tensor > 1) {
    return Status::Unimplemented("tensor_parallel_size is " + std::to_string(tensor) +
                                 "; on device cuda that needs a build with FASTLLM_CUDA and FASTLLM_NCCL");
  }
#endif
  return Status::Ok();
}

#if defined(FASTLLM_CUDA) && defined(FASTLLM_NCCL)
namespace {

Result<std::shared_ptr<Communicator>> JoinNccl(const Ranks& ranks) {
  NcclId id{};
  if (ranks.host->rank() == 0) {
    FASTLLM_ASSIGN_OR_RETURN(id, MakeNcclId());
  }
  FASTLLM_RETURN_IF_ERROR(ranks.host->Broadcast({}, id.data(), static_cast<int64_t>(id.size()), CommType::kByte, 0));
  std::vector<std::string> names;
  for (const int32_t member : ranks.topology.TensorGroup()) names.push_back(ranks.topology.NameOf(member));
  FASTLLM_ASSIGN_OR_RETURN(auto nccl, MakeNcclCommunicator(id, ranks.host->rank(), std::move(names)));
  return std::shared_ptr<Communicator>(std::move(nccl));
}

// Measured for Llama-8B (bench/RESULTS.md): at 1024 rows the products of halves lose more than the sums gain. Tiles of
// products have up to as many rows as a piece is a multiple of.
constexpr int64_t kLeastCutRows = 2048, kPieceRows = 256;

JoinPlan PlanOf(const DeviceRanksOptions& o, const Ranks& ranks, const AnnounceFn& announce) {
  JoinPlan plan;
  plan.connect = JoinNccl;
  plan.timeout = o.timeout;
  plan.announce = announce;
  PeerOptions& peers = plan.peers;
  peers.placement = o.placement;
  peers.name = ranks.topology.name();
  peers.reduce_of = ops::CudaPeerReduce;
  peers.reduce_norm_of = ops::CudaPeerReduceNorm;
  peers.argmax = ops::CudaPeerArgmax();
  peers.reach = ops::CudaReachPeer;
  peers.rows = o.rows;
  peers.row_bytes = o.row_bytes;
  peers.rows_norm_of = ops::CudaPeerRowsNorm;
  peers.least_cut_rows = kLeastCutRows;
  peers.piece_rows = kPieceRows;
  peers.piece_norm_of = ops::CudaPeerPieceNorm;
  return plan;
}

}  // namespace

Status JoinDeviceRanks(const DeviceRanksOptions& options, Ranks* ranks, const AnnounceFn& announce) {
  if (ranks->topology.sizes.tensor == 1) return Status::Ok();
  FASTLLM_RETURN_IF_ERROR(CheckDeviceRanks(options.placement, ranks->topology.world()));
  try {
    const ops::DeviceApi& device = *ops::FindDevice(options.placement.device);
    const int32_t number = ranks->topology.rank;
    device.Use(number);
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(number), /*force=*/true);
    return JoinRanks(device, PlanOf(options, *ranks, announce), ranks);
  } catch (const std::exception& e) {
    return Status::Internal(std::string("joining the other devices failed: ") + e.what());
  }
}
#else
Status JoinDeviceRanks(const DeviceRanksOptions& options, Ranks* ranks, const AnnounceFn& /*announce*/) {
  return CheckDeviceRanks(options.placement, ranks->topology.world());
}
#endif

}  // namespace fastllm::runtime
