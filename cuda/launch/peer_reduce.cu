// The launcher of peer_reduce, and what lets one device write to another.
#include <cuda_runtime.h>

#include <string>

#include "core/base/check.h"
#include "cuda/comm/peer_reduce.cuh"
#include "cuda/launch/launch.h"
#include "ops/contract/peer_reduce.h"

namespace fastllm::cuda {
namespace {

template <typename T>
void PeerReduce(const ops::PeerReduceParams& p, const ops::OpContext& ctx) {
  if (p.count <= 0) return;
  const int64_t units = ops::PeerUnits(p.count * static_cast<int64_t>(sizeof(T)));
  FASTLLM_CHECK(p.size >= 2 && p.size <= ops::kMostPeers && p.rank >= 0 && p.rank < p.size,
                "peer_reduce: rank " + std::to_string(p.rank) + " of " + std::to_string(p.size));
  FASTLLM_CHECK(p.epochs != nullptr && p.stop != nullptr, "peer_reduce: no epochs, or no word that stops it");
  FASTLLM_CHECK(units <= p.capacity, "peer_reduce: " + std::to_string(units) + " units; its boxes have room for " +
                                         std::to_string(p.capacity));
  FASTLLM_CHECK(reinterpret_cast<uintptr_t>(p.data) % ops::kPeerUnitBytes == 0, "peer_reduce: data is not aligned");
  const auto blocks = static_cast<unsigned>(ops::PeerBlocks(units));
  const auto kernel = p.two_shots ? PeerReduceKernel<T, true> : PeerReduceKernel<T, false>;
  kernel<<<blocks, ops::kPeerBlockUnits, 0, StreamOf(ctx)>>>(p);
  CheckLaunch("peer_reduce");
}

// Kernels are loaded when they are first launched, which may wait for what runs: the other ranks' kernels, which wait
// for this one.
template <typename T>
ops::PeerReduceFn Loaded() {
  for (const auto kernel : {PeerReduceKernel<T, true>, PeerReduceKernel<T, false>}) {
    cudaFuncAttributes attributes;
    const cudaError_t e = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
    FASTLLM_CHECK(e == cudaSuccess, std::string("peer_reduce: ") + cudaGetErrorString(e));
  }
  return &PeerReduce<T>;
}

}  // namespace
}  // namespace fastllm::cuda

namespace fastllm::ops {

PeerReduceFn CudaPeerReduce(DType dtype) {
  switch (dtype) {
    case DType::kF32: return cuda::Loaded<float>();
    case DType::kF16: return cuda::Loaded<__half>();
    case DType::kBF16: return cuda::Loaded<cuda::bf16>();
    default: return nullptr;
  }
}

bool CudaReachPeer(int32_t device) {
  int here = 0, can = 0;
  if (cudaGetDevice(&here) != cudaSuccess) return false;
  if (here == device) return true;
  if (cudaDeviceCanAccessPeer(&can, here, device) != cudaSuccess || can == 0) return false;
  const cudaError_t e = cudaDeviceEnablePeerAccess(device, 0);
  static_cast<void>(cudaGetLastError());  // that it was enabled before is an error that would stay
  return e == cudaSuccess || e == cudaErrorPeerAccessAlreadyEnabled;
}

}  // namespace fastllm::ops
