// peer_argmax: greedy tokens where each rank has the logits of a part of the vocabulary, which stay where they are.
#pragma once

#include <cstdint>

#include "ops/contract/peer_reduce.h"

namespace fastllm::ops {

// tokens[r] becomes, on all ranks, the id of the largest logit in row r of all parts, as `sample` picks it for a greedy
// row: ties go to the lowest id; -1 for a row that holds a NaN or no finite value. Ranks in their order have ascending
// ids. A row takes a block of units of the boxes of peer_reduce, and calls of both kinds take turns on them.
struct PeerArgmaxParams {
  PeerReduceParams peers;         // `data` and `count` are not read
  const float* logits = nullptr;  // [num_rows, width], row stride `stride`: this rank's part
  int32_t* tokens = nullptr;      // [num_rows]
  int64_t stride = 0;
  int32_t num_rows = 0;  // at most PeerBlocks(peers.capacity)
  int32_t width = 0;     // 0: this rank has no part
  int32_t first_id = 0;  // of column 0; ids below 2^30
};
using PeerArgmaxFn = void (*)(const PeerArgmaxParams&, const OpContext&);

// Only in builds with FASTLLM_CUDA (cuda/launch/peer_argmax.cu), as CudaPeerReduce().
PeerArgmaxFn CudaPeerArgmax();

// What a rank says of its part of a row, in a unit: the largest logit, and beside it the id and whether a value is
// finite.
inline constexpr uint32_t kPeerPickFinite = 1u << 30;
inline constexpr uint32_t kPeerPickNothing = 0x3fffffffu;  // in place of the id: no value above -inf
inline constexpr uint32_t kPeerPickNan = 0xffffffffu;      // instead of all

}  // namespace fastllm::ops
