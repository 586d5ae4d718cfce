// The launcher of peer_reduce, and what lets one device write to another.
#include <cuda_runtime.h>

#include <string>

#include "core/base/check.h"
#include "cuda/comm/peer_reduce.cuh"
#include "cuda/launch/launch.h"
#include "cuda/launch/overlap.cuh"
#include "cuda/launch/peer_ahead.h"
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
  LaunchOverlapped(p.two_shots ? PeerReduceKernel<T, true> : PeerReduceKernel<T, false>,
                   dim3(static_cast<unsigned>(ops::PeerBlocks(units))), ops::kPeerBlockUnits, 0, StreamOf(ctx),
                   "peer_reduce", p);
}

template <typename T>
void PeerReduceNorm(const ops::PeerReduceNormParams& p, const ops::OpContext& ctx) {
  const ops::RmsNormParams& n = p.norm;
  if (n.num_tokens <= 0) return;
  const int64_t row_bytes = n.hidden * static_cast<int64_t>(sizeof(T));
  const int64_t needed = ops::PeerNormUnits(n.num_tokens, row_bytes);
  FASTLLM_CHECK(needed > 0 && needed <= p.peers.capacity,
                "peer_reduce_norm: " + std::to_string(n.num_tokens) + " rows of " + std::to_string(row_bytes) +
                    " bytes; its boxes have room for " + std::to_string(p.peers.capacity) + " units");
  FASTLLM_CHECK(p.peers.size >= 2 && p.peers.size <= ops::kMostPeers && p.peers.epochs != nullptr &&
                    p.peers.stop != nullptr && n.residual != nullptr,
                "peer_reduce_norm: no peers, epochs, word that stops it, or residual");
  for (const void* data : {static_cast<const void*>(n.out), n.x, static_cast<const void*>(n.residual), n.weight}) {
    FASTLLM_CHECK(reinterpret_cast<uintptr_t>(data) % ops::kPeerUnitBytes == 0,
                  "peer_reduce_norm: data is not aligned");
  }
  const int64_t row_threads = ops::PeerBlocks(row_bytes / ops::kPeerUnitBytes) * ops::kPeerBlockUnits;
  const int64_t per_thread = CeilDiv(row_threads, 1024);
  const auto threads = static_cast<int32_t>(row_threads < 1024 ? row_threads : 1024);
  ops::PeerReduceNormParams call = p;
  call.next = AheadOfPeers(p.next, n.num_tokens);
  const auto launch = [&](auto kernel) {
    LaunchOverlapped(kernel, dim3(static_cast<unsigned>(n.num_tokens)), threads, 0, StreamOf(ctx), "peer_reduce_norm",
                     call);
  };
  if (per_thread <= 1) {
    launch(PeerReduceNormKernel<T, 1>);
  } else if (per_thread <= 2) {
    launch(PeerReduceNormKernel<T, 2>);
  } else {
    launch(PeerReduceNormKernel<T, 4>);
  }
}

// Kernels are loaded when they are first launched, which may wait for what runs: the other ranks' kernels, which wait
// for this one.
template <typename Kernel>
void LoadKernel(Kernel kernel) {
  cudaFuncAttributes attributes;
  const cudaError_t e = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
  FASTLLM_CHECK(e == cudaSuccess, std::string("peer_reduce: ") + cudaGetErrorString(e));
}

template <typename T>
ops::PeerReduceFn Loaded() {
  LoadKernel(PeerReduceKernel<T, true>);
  LoadKernel(PeerReduceKernel<T, false>);
  return &PeerReduce<T>;
}

template <typename T>
ops::PeerReduceNormFn LoadedNorm() {
  LoadKernel(PeerReduceNormKernel<T, 1>);
  LoadKernel(PeerReduceNormKernel<T, 2>);
  LoadKernel(PeerReduceNormKernel<T, 4>);
  return &PeerReduceNorm<T>;
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

PeerReduceNormFn CudaPeerReduceNorm(DType dtype) {
  switch (dtype) {
    case DType::kF32: return cuda::LoadedNorm<float>();
    case DType::kF16: return cuda::LoadedNorm<__half>();
    case DType::kBF16: return cuda::LoadedNorm<cuda::bf16>();
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
