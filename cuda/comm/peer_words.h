// How rows lie in the boxes of peer_rows_norm, without a word of CUDA: the kernel runs it on the device, and
// tests/ops/peer_rows_test.cc on threads.
//
// A row goes in words of 32 bits, which are written and read whole, inverted so that none is zero: who finds a word
// that is not zero has the data, and no flag or fence is needed. Who has read a word puts zero back. Boxes have room
// for two calls in turns: a rank begins call e + 2 after call e + 1, for which each peer has sent, and so has ended
// call e and put all its zeros back.
#pragma once

#include <cstdint>

#include "cuda/comm/peer_steps.h"

namespace fastllm::cuda {

// The only word that would become zero is a NaN of each type (of 32 bits, or two of 16); it goes as another.
inline constexpr uint32_t kPeerNan = 0xffffffffu, kPeerOtherNan = 0x7fff7fffu;

FASTLLM_PEER_FN uint32_t ToBox(uint32_t word) { return ~(word == kPeerNan ? kPeerOtherNan : word); }
FASTLLM_PEER_FN uint32_t FromBox(uint32_t word) { return ~word; }

}  // namespace fastllm::cuda
