// peer_piece_norm: the end of a sum over ranks with the residual and the norm that follow it, of rows that the ranks
// have copied to each other meanwhile. The copies are the caller's (runtime/device/peer_pieces.h).
#pragma once

#include <cstdint>

#include "ops/contract/peer_reduce.h"

namespace fastllm::ops {

// residual += sum of the ranks' parts; out = rms_norm(residual) * weight, rounded as peer_reduce and rms_norm after it
// would, in the order of the ranks: the same bits on all. A part is there when its flag is `epoch`.
struct PeerPieceNormParams {
  int32_t rank = 0;
  int32_t size = 2;                        // of the group: 2 to kMostPeers
  const void* parts[kMostPeers] = {};      // of each other rank: [num_tokens, hidden], in memory of this device
  const uint32_t* flags[kMostPeers] = {};  // of each other rank
  uint32_t epoch = 0;
  const uint32_t* stop = nullptr;  // as PeerReduceParams has it
  RmsNormParams norm;              // x: this rank's part; with a residual. Rows and pointers as kPeerRowAlignment says.
};
using PeerPieceNormFn = void (*)(const PeerPieceNormParams&, const OpContext&);

// Only in builds with FASTLLM_CUDA (cuda/launch/peer_piece.cu), as CudaPeerReduce(); of two ranks.
PeerPieceNormFn CudaPeerPieceNorm(DType dtype);

}  // namespace fastllm::ops
