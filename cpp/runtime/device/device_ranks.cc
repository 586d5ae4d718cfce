#include "runtime/device/device_ranks.h"

#include <string>

#include "ops/table/device.h"

#if defined(FASTLLM_CUDA) && defined(FASTLLM_NCCL)
#include <c10/cuda/CUDAFunctions.h>

#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/device/nccl_communicator.h"
#include "runtime/device/peer_communicator.h"
#include "runtime/tensor/tensors.h"
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

// NCCL connects the ranks when calls of a size come for the first time, which waits for what runs on the device.
Status WarmUp(const ops::DeviceApi& device, const Placement& placement, Communicator* ranks) {
  constexpr int64_t kLeast = int64_t{1} << 10, kMost = int64_t{16} << 20;  // bytes
  const at::Tensor in = Empty({kMost}, placement.Options(at::kByte));
  const at::Tensor out = Empty({kMost * ranks->size()}, placement.Options(at::kByte));
  const ops::OpContext context{device.CreateStream(), 1};
  Status status;
  for (int64_t bytes = kLeast; bytes <= kMost && status.ok(); bytes *= 4) {
    const int64_t count = bytes / CommTypeSize(CommType::kBF16);
    status = ranks->AllReduceSum(context, in.mutable_data_ptr(), count, CommType::kBF16);
    if (!status.ok()) break;
    status = ranks->AllGather(context, in.const_data_ptr(), out.mutable_data_ptr(),
                              bytes / CommTypeSize(CommType::kF32), CommType::kF32);
  }
  device.Synchronize(context.stream);
  device.DestroyStream(context.stream);
  return status;
}

Status Join(const ops::DeviceApi& device, const DeviceRanksOptions& o, Ranks* ranks) {
  const int32_t number = ranks->topology.rank;
  device.Use(number);
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(number), /*force=*/true);
  FASTLLM_ASSIGN_OR_RETURN(auto nccl, JoinNccl(*ranks));
  PeerOptions options;
  options.placement = o.placement;
  options.name = ranks->topology.name();
  options.reduce_of = ops::CudaPeerReduce;
  options.reduce_norm_of = ops::CudaPeerReduceNorm;
  options.argmax = ops::CudaPeerArgmax();
  options.reach = ops::CudaReachPeer;
  options.rows = o.rows;
  options.row_bytes = o.row_bytes;
  options.rows_norm_of = ops::CudaPeerRowsNorm;
  FASTLLM_RETURN_IF_ERROR(WarmUp(device, o.placement, nccl.get()));
  FASTLLM_ASSIGN_OR_RETURN(ranks->tensor, MakePeerCommunicator(*ranks->host, std::move(nccl), options));
  return ranks->host->Barrier({});
}

}  // namespace

Status JoinDeviceRanks(const DeviceRanksOptions& options, Ranks* ranks) {
  if (ranks->topology.sizes.tensor == 1) return Status::Ok();
  FASTLLM_RETURN_IF_ERROR(CheckDeviceRanks(options.placement, ranks->topology.world()));
  try {
    return Join(*ops::FindDevice(options.placement.device), options, ranks);
  } catch (const std::exception& e) {
    return Status::Internal(std::string("joining the other devices failed: ") + e.what());
  }
}
#else
Status JoinDeviceRanks(const DeviceRanksOptions& options, Ranks* ranks) {
  return CheckDeviceRanks(options.placement, ranks->topology.world());
}
#endif

}  // namespace fastllm::runtime
