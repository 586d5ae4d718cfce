// peer_rows_norm: the sum over ranks of many rows, with the residual and the norm that follow it, for messages so large
// that the bytes on the links are their time. The data itself says that it is there (cuda/comm/peer_words.h).
#pragma once

#include <cstdint>

#include "ops/contract/peer_reduce.h"

#ifdef __CUDACC__
#define FASTLLM_PEER_ROWS_FN __host__ __device__ inline
#else
#define FASTLLM_PEER_ROWS_FN inline
#endif

namespace fastllm::ops {

inline constexpr int64_t kPeerRowAlignment = 16;  // bytes: of rows, and of all pointers
inline constexpr int64_t kMostPeerRowBytes = 32768;

// A box of many rows: for calls in turns (two), the rows of each peer. Zeroed once.
struct PeerRowsBoxes {
  int32_t rank = 0;
  int32_t size = 2;                // of the group: 2 to kMostPeers
  int64_t rows = 0;                // that there is room for
  int64_t row_bytes = 0;           // of each, a multiple of kPeerRowAlignment up to kMostPeerRowBytes
  void* boxes[kMostPeers] = {};    // of every rank, as this one reaches it; PeerRowsBytes()
  uint32_t* epochs = nullptr;      // of this rank: [rows], zeroed once
  const uint32_t* stop = nullptr;  // as PeerReduceParams has it
};

inline constexpr int64_t PeerRowsBytes(int32_t size, int64_t rows, int64_t row_bytes) {
  return 2 * (int64_t{size} - 1) * rows * row_bytes;
}

// The part of a box that rank `from` fills in a call: calls of a row are counted by its epoch, and take turns.
FASTLLM_PEER_ROWS_FN int64_t PeerRowsPart(const PeerRowsBoxes& b, int32_t box, int32_t from, uint32_t epoch) {
  return int64_t{epoch & 1u} * (b.size - 1) + (from < box ? from : from - 1);
}
FASTLLM_PEER_ROWS_FN void* PeerRowAt(const PeerRowsBoxes& b, int32_t box, int32_t from, int64_t row, uint32_t epoch) {
  return static_cast<char*>(b.boxes[box]) + (PeerRowsPart(b, box, from, epoch) * b.rows + row) * b.row_bytes;
}

// As peer_reduce_norm: residual += sum of the ranks' x; out = rms_norm(residual) * weight, rounded as the ops apart
// would. Every rank makes the same calls in the same order. On a device the blocks of a call must find room at one
// time: as many as the launcher makes, whatever the number of rows.
struct PeerRowsNormParams {
  PeerRowsBoxes peers;
  RmsNormParams norm;  // hidden elements are peers.row_bytes; num_tokens at most peers.rows; with a residual
  NextWeight next;     // fetched while ranks wait for each other, where the rows are few
};
using PeerRowsNormFn = void (*)(const PeerRowsNormParams&, const OpContext&);

// Only in builds with FASTLLM_CUDA (cuda/launch/peer_rows.cu), as CudaPeerReduce(); of two ranks.
PeerRowsNormFn CudaPeerRowsNorm(DType dtype);

}  // namespace fastllm::ops
