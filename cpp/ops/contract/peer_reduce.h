// peer_reduce: the sum over ranks that can write into each other's memory, for messages so small that latency is all
// of their time. One launch for each rank, nothing of the host between them, so that it can be part of a graph.
#pragma once

#include <cstdint>

#include "ops/contract/common.h"
#include "ops/contract/fused_linear.h"
#include "ops/contract/rms_norm.h"

namespace fastllm::ops {

inline constexpr int32_t kMostPeers = 8;
// Data goes in units of 8 bytes, each in a line of 16 with the number of the call beside it. A block has as many units.
inline constexpr int32_t kPeerUnitBytes = 8;
inline constexpr int32_t kPeerLineBytes = 16;
inline constexpr int32_t kPeerBlockUnits = 256;

inline constexpr int64_t PeerUnits(int64_t bytes) { return (bytes + kPeerUnitBytes - 1) / kPeerUnitBytes; }
inline constexpr int64_t PeerBlocks(int64_t units) { return (units + kPeerBlockUnits - 1) / kPeerBlockUnits; }

// A box is where the peers of a rank put what is for it: for calls in turns (two), a place for each unit of each peer,
// and one for each unit of the result.
inline constexpr int64_t PeerBoxBytes(int32_t size, int64_t capacity) {
  return 2 * (int64_t{size} + 1) * capacity * kPeerLineBytes;
}

// data[i] becomes the sum of the ranks' data[i]: in the order of the ranks in float32, rounded once, so all ranks have
// the same bits. Every rank makes the same calls (count, type, two_shots) in the same order, each on a stream of its
// own on which calls do not overlap. The ranks' launches wait for each other: all blocks of a call must find room on
// the devices at one time.
struct PeerReduceParams {
  void* data = nullptr;  // [count], at a multiple of 8 bytes
  int64_t count = 0;     // at most `capacity` units
  int32_t rank = 0;
  int32_t size = 2;                // of the group: 2 to kMostPeers
  int64_t capacity = 0;            // units that a box was made for
  void* boxes[kMostPeers] = {};    // of every rank, as this one reaches it; PeerBoxBytes(), zeroed once
  uint32_t* epochs = nullptr;      // of this rank: [PeerBlocks(capacity)], zeroed once
  const uint32_t* stop = nullptr;  // a word in host memory: once it is not 0 nobody waits, and sums are of no use
  bool two_shots = false;          // each rank adds a part and tells the others; false: each adds everything
};
using PeerReduceFn = void (*)(const PeerReduceParams&, const OpContext&);

// Which of the two ways takes fewer bytes off a device where that matters. With two ranks both send as many.
inline constexpr bool PeerTwoShots(int32_t size, int64_t bytes) {
  constexpr int64_t kMostOneShotBytes = int64_t{256} << 10;  // reckoned from the bandwidth of a link, not measured
  return size > 2 && (size - 1) * bytes > kMostOneShotBytes;
}

// The sum, and what follows it in a model: residual += sum of the ranks' x; out = rms_norm(residual) * weight, rounded
// as peer_reduce and rms_norm after it would. In one shot. Rows begin with a block of units of their own, so calls of
// this kind and of the other take turns on the same boxes.
struct PeerReduceNormParams {
  PeerReduceParams peers;  // `data` and `count` are not read
  RmsNormParams norm;      // x: this rank's part; with a residual. All pointers at multiples of 8 bytes.
  NextWeight next;         // fetched while ranks wait for each other, where the rows are few
};
using PeerReduceNormFn = void (*)(const PeerReduceNormParams&, const OpContext&);

inline constexpr int64_t kMostPeerNormUnits = 4096;  // of a row
// Units that a call takes in a box; 0: rows of this size are not for it.
inline constexpr int64_t PeerNormUnits(int64_t rows, int64_t row_bytes) {
  if (row_bytes % kPeerUnitBytes != 0 || row_bytes > kMostPeerNormUnits * kPeerUnitBytes) return 0;
  return rows * PeerBlocks(row_bytes / kPeerUnitBytes) * kPeerBlockUnits;
}

// Only in builds with FASTLLM_CUDA (cuda/launch/peer_reduce.cu). The function for elements of a type; it throws
// InternalError for sizes outside the contract.
PeerReduceFn CudaPeerReduce(DType dtype);
PeerReduceNormFn CudaPeerReduceNorm(DType dtype);
// Whether the current device can read and write the memory of another; makes it so.
bool CudaReachPeer(int32_t device);

}  // namespace fastllm::ops
