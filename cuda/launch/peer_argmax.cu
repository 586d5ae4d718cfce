// The launcher of peer_argmax.
#include <cuda_runtime.h>

#include <string>

#include "core/base/check.h"
#include "cuda/comm/peer_argmax.cuh"
#include "cuda/launch/launch.h"
#include "cuda/launch/overlap.cuh"
#include "ops/contract/peer_argmax.h"

namespace fastllm::cuda {
namespace {

void PeerArgmax(const ops::PeerArgmaxParams& p, const ops::OpContext& ctx) {
  if (p.num_rows <= 0) return;
  FASTLLM_CHECK(p.num_rows <= ops::PeerBlocks(p.peers.capacity), "peer_argmax: " + std::to_string(p.num_rows) +
                                                                     " rows; its boxes have room for " +
                                                                     std::to_string(ops::PeerBlocks(p.peers.capacity)));
  FASTLLM_CHECK(p.peers.size >= 2 && p.peers.size <= ops::kMostPeers && p.peers.epochs != nullptr &&
                    p.peers.stop != nullptr && int64_t{p.first_id} + p.width < ops::kPeerPickNothing,
                "peer_argmax: no peers, epochs or word that stops it, or ids too large");
  const bool packed = p.width % 4 == 0 && p.stride % 4 == 0 && Aligned16(p.logits);
  LaunchOverlapped(PeerArgmaxKernel, dim3(p.num_rows), kPeerArgmaxThreads, 0, StreamOf(ctx), "peer_argmax", p, packed);
}

}  // namespace
}  // namespace fastllm::cuda

namespace fastllm::ops {

// Loaded now, for the reason that peer_reduce.cu has.
PeerArgmaxFn CudaPeerArgmax() {
  cudaFuncAttributes attributes;
  const cudaError_t e = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&cuda::PeerArgmaxKernel));
  FASTLLM_CHECK(e == cudaSuccess, std::string("peer_argmax: ") + cudaGetErrorString(e));
  return &cuda::PeerArgmax;
}

}  // namespace fastllm::ops
