// The launcher of peer_rows_norm.
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "core/base/check.h"
#include "cuda/comm/peer_rows.cuh"
#include "cuda/launch/launch.h"
#include "cuda/launch/overlap.cuh"
#include "cuda/launch/peer_ahead.h"
#include "ops/contract/peer_rows.h"

namespace fastllm::cuda {
namespace {

template <typename T, int kPacks>
void Launch(const ops::PeerRowsNormParams& p, int32_t threads, const ops::OpContext& ctx) {
  const int32_t most = CurrentDevice().multiprocessors * kPeerRowBlocks<kPacks>;
  ops::PeerRowsNormParams call = p;
  call.next = AheadOfPeers(p.next, p.norm.num_tokens);
  LaunchOverlapped(PeerRowsNormKernel<T, kPacks>, dim3(std::min(p.norm.num_tokens, most)), threads, 0, StreamOf(ctx),
                   "peer_rows_norm", call);
}

template <typename T>
void PeerRowsNorm(const ops::PeerRowsNormParams& p, const ops::OpContext& ctx) {
  const ops::RmsNormParams& n = p.norm;
  if (n.num_tokens <= 0) return;
  const int64_t row_bytes = n.hidden * static_cast<int64_t>(sizeof(T));
  FASTLLM_CHECK(n.num_tokens <= p.peers.rows && row_bytes == p.peers.row_bytes,
                "peer_rows_norm: " + std::to_string(n.num_tokens) + " rows of " + std::to_string(row_bytes) +
                    " bytes; its boxes have room for " + std::to_string(p.peers.rows) + " of " +
                    std::to_string(p.peers.row_bytes));
  FASTLLM_CHECK(row_bytes % ops::kPeerRowAlignment == 0 && row_bytes <= ops::kMostPeerRowBytes,
                "peer_rows_norm: rows of " + std::to_string(row_bytes) + " bytes");
  FASTLLM_CHECK(p.peers.size == 2 && p.peers.epochs != nullptr && p.peers.stop != nullptr && n.residual != nullptr,
                "peer_rows_norm: not two ranks, or no epochs, word that stops it, or residual");
  FASTLLM_CHECK(Aligned16(n.out) && Aligned16(n.x) && Aligned16(n.residual) && Aligned16(n.weight),
                "peer_rows_norm: data is not aligned");
  const auto packs = static_cast<int32_t>(row_bytes / ops::kPeerRowAlignment);
  const int32_t threads = std::min(kPeerRowThreads, CeilDiv(packs, 32) * 32);
  switch (CeilDiv(packs, kPeerRowThreads)) {
    case 1: return Launch<T, 1>(p, threads, ctx);
    case 2: return Launch<T, 2>(p, threads, ctx);
    default: return Launch<T, 4>(p, threads, ctx);
  }
}

// As in peer_reduce.cu.
template <typename T>
ops::PeerRowsNormFn Loaded() {
  for (const auto kernel : {PeerRowsNormKernel<T, 1>, PeerRowsNormKernel<T, 2>, PeerRowsNormKernel<T, 4>}) {
    cudaFuncAttributes attributes;
    const cudaError_t e = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
    FASTLLM_CHECK(e == cudaSuccess, std::string("peer_rows_norm: ") + cudaGetErrorString(e));
  }
  return &PeerRowsNorm<T>;
}

}  // namespace
}  // namespace fastllm::cuda

namespace fastllm::ops {

PeerRowsNormFn CudaPeerRowsNorm(DType dtype) {
  switch (dtype) {
    case DType::kF32: return cuda::Loaded<float>();
    case DType::kF16: return cuda::Loaded<__half>();
    case DType::kBF16: return cuda::Loaded<cuda::bf16>();
    default: return nullptr;
  }
}

}  // namespace fastllm::ops
