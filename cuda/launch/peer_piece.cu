// The launcher of peer_piece_norm.
#include <cuda_runtime.h>

#include <string>

#include "core/base/check.h"
#include "cuda/comm/peer_piece.cuh"
#include "cuda/launch/launch.h"
#include "cuda/launch/overlap.cuh"
#include "ops/contract/peer_piece.h"

namespace fastllm::cuda {
namespace {

template <typename T, int kPacks>
void Launch(const ops::PeerPieceNormParams& p, int32_t packs, const ops::OpContext& ctx) {
  const int32_t threads = CeilDiv(CeilDiv(packs, kPacks), 32) * 32;
  LaunchOverlapped(PeerPieceNormKernel<T, kPacks>, dim3(p.norm.num_tokens), threads, 0, StreamOf(ctx),
                   "peer_piece_norm", p);
}

template <typename T>
void PeerPieceNorm(const ops::PeerPieceNormParams& p, const ops::OpContext& ctx) {
  const ops::RmsNormParams& n = p.norm;
  if (n.num_tokens <= 0) return;
  const int64_t row_bytes = n.hidden * static_cast<int64_t>(sizeof(T));
  FASTLLM_CHECK(row_bytes % ops::kPeerRowAlignment == 0 && row_bytes <= ops::kMostPeerRowBytes,
                "peer_piece_norm: rows of " + std::to_string(row_bytes) + " bytes");
  FASTLLM_CHECK(
      p.size == 2 && (p.rank == 0 || p.rank == 1) && p.epoch != 0 && p.stop != nullptr && n.residual != nullptr,
      "peer_piece_norm: not two ranks, or no epoch, word that stops it, or residual");
  FASTLLM_CHECK(Aligned16(n.out) && Aligned16(n.x) && Aligned16(n.residual) && Aligned16(n.weight),
                "peer_piece_norm: data is not aligned");
  FASTLLM_CHECK(p.parts[1 - p.rank] != nullptr && Aligned16(p.parts[1 - p.rank]) && p.flags[1 - p.rank] != nullptr,
                "peer_piece_norm: no part or flag of the peer");
  const auto packs = static_cast<int32_t>(row_bytes / ops::kPeerRowAlignment);
  if (packs <= 512) return Launch<T, 2>(p, packs, ctx);
  Launch<T, 4>(p, packs, ctx);
}

// As in peer_reduce.cu.
template <typename T>
ops::PeerPieceNormFn Loaded() {
  for (const auto kernel : {PeerPieceNormKernel<T, 2>, PeerPieceNormKernel<T, 4>}) {
    cudaFuncAttributes attributes;
    const cudaError_t e = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
    FASTLLM_CHECK(e == cudaSuccess, std::string("peer_piece_norm: ") + cudaGetErrorString(e));
  }
  return &PeerPieceNorm<T>;
}

}  // namespace
}  // namespace fastllm::cuda

namespace fastllm::ops {

PeerPieceNormFn CudaPeerPieceNorm(DType dtype) {
  switch (dtype) {
    case DType::kF32: return cuda::Loaded<float>();
    case DType::kF16: return cuda::Loaded<__half>();
    case DType::kBF16: return cuda::Loaded<cuda::bf16>();
    default: return nullptr;
  }
}

}  // namespace fastllm::ops
