// How what the ranks say of their parts of a row becomes one token, without a word of CUDA. contract/peer_argmax.h.
#pragma once

#include <cstdint>

#include "cuda/comm/peer_steps.h"
#include "ops/contract/peer_argmax.h"

namespace fastllm::cuda {

// Take(rank, &value, &facts) of each rank in its order; false: the group has been stopped.
template <typename TakeFn>
FASTLLM_PEER_FN int32_t PickAmongRanks(int32_t size, const TakeFn& take) {
  float best = 0.0f;
  uint32_t id = ops::kPeerPickNothing;
  bool finite = false;
  for (int32_t r = 0; r < size; ++r) {
    float value = 0.0f;
    uint32_t facts = 0;
    if (!take(r, &value, &facts) || facts == ops::kPeerPickNan) return -1;
    finite |= (facts & ops::kPeerPickFinite) != 0;
    facts &= ops::kPeerPickNothing;
    if (facts == ops::kPeerPickNothing || (id != ops::kPeerPickNothing && !(value > best))) continue;
    best = value;
    id = facts;
  }
  return finite && id != ops::kPeerPickNothing ? static_cast<int32_t>(id) : -1;
}

}  // namespace fastllm::cuda
