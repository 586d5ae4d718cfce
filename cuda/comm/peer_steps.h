// The steps of peer_reduce for one unit of data, without a word of CUDA: the kernel runs them on the device, and
// tests/ops/peer_reduce_test.cc on threads.
//
// A unit travels in two 64-bit words, each half of it beside the number of the call (the epoch): a word is written and
// read whole, so who finds the epoch has the data, and no fence is needed. Boxes have room for two calls in turns. A
// rank begins call e + 2 after call e + 1, for which it has waited until every peer had sent, and so had ended call e:
// what it overwrites has been read. This holds block by block, as a block waits for the same block of the others.
#pragma once

#include <cstdint>

#include "ops/contract/peer_reduce.h"

#ifdef __CUDACC__
#define FASTLLM_PEER_FN __device__ __forceinline__
#else
#define FASTLLM_PEER_FN inline
#endif

namespace fastllm::cuda {

// The epoch after this one: never 0, which is in memory that nobody has written to, and odd and even in turns.
FASTLLM_PEER_FN uint32_t NextEpoch(uint32_t epoch) { return epoch == 0xffffffffu ? 2u : epoch + 1u; }

// Codec: kValues, float <-> unit: Unpack(uint64_t, float*), Pack(const float*), Load(data, unit, count),
// Store(data, unit, count, uint64_t); what is past the end is zero and not stored.
// Memory: Put(void* line, uint64_t, uint64_t); Take(const void* line, uint32_t epoch, uint64_t*, uint64_t*), which
// waits until both words have the epoch in their upper halves, and is false when the group has been stopped.
template <typename Codec, typename Memory>
class PeerSteps {
 public:
  FASTLLM_PEER_FN PeerSteps(const ops::PeerReduceParams& p, uint32_t epoch, Memory* memory)
      : p_(p), epoch_(epoch), parity_(static_cast<int32_t>(epoch & 1u)), memory_(memory) {}

  // For those who go on with the sum: Tell() this rank's values of a unit, then Total() of all ranks', unrounded, in
  // sum[Codec::kValues].
  FASTLLM_PEER_FN void Tell(int64_t unit, uint64_t own) {
    for (int32_t k = 1; k < p_.size; ++k) Put(Parcel(Peer(k), p_.rank, unit), own);
  }
  FASTLLM_PEER_FN bool Total(int64_t unit, uint64_t own, float* sum) {
    float values[Codec::kValues];
    for (int32_t r = 0; r < p_.size; ++r) {
      uint64_t theirs = own;
      if (r != p_.rank && !Take(Parcel(p_.rank, r, unit), &theirs)) return false;
      Codec::Unpack(theirs, values);
      for (int32_t i = 0; i < Codec::kValues; ++i) sum[i] = r == 0 ? values[i] : sum[i] + values[i];
    }
    return true;
  }

  // What another rank has told of a unit.
  FASTLLM_PEER_FN bool Fetch(int64_t unit, int32_t from, uint64_t* told) {
    return Take(Parcel(p_.rank, from, unit), told);
  }

  // One shot: Send() of a unit, then Receive().
  FASTLLM_PEER_FN void Send(int64_t unit) { Tell(unit, Codec::Load(p_.data, unit, p_.count)); }
  FASTLLM_PEER_FN bool Receive(int64_t unit) {
    uint64_t sum = 0;
    if (!Add(unit, &sum)) return false;
    Codec::Store(p_.data, unit, p_.count, sum);
    return true;
  }

  // Two shots: SendShare() of all units of a block, Combine() of all, Collect() of all.
  FASTLLM_PEER_FN void SendShare(int64_t unit) {
    const int32_t owner = Owner(unit);
    if (owner != p_.rank) Put(Parcel(owner, p_.rank, unit), Codec::Load(p_.data, unit, p_.count));
  }
  FASTLLM_PEER_FN bool Combine(int64_t unit) {
    if (Owner(unit) != p_.rank) return true;
    uint64_t sum = 0;
    if (!Add(unit, &sum)) return false;
    for (int32_t k = 1; k < p_.size; ++k) Put(Outcome(Peer(k), unit), sum);
    Codec::Store(p_.data, unit, p_.count, sum);
    return true;
  }
  FASTLLM_PEER_FN bool Collect(int64_t unit) {
    if (Owner(unit) == p_.rank) return true;
    uint64_t sum = 0;
    if (!Take(Outcome(p_.rank, unit), &sum)) return false;
    Codec::Store(p_.data, unit, p_.count, sum);
    return true;
  }

 private:
  // The k-th after this rank: ranks begin with different ones.
  FASTLLM_PEER_FN int32_t Peer(int32_t k) const {
    const int32_t peer = p_.rank + k;
    return peer < p_.size ? peer : peer - p_.size;
  }
  // Who adds a unit up, in two shots.
  FASTLLM_PEER_FN int32_t Owner(int64_t unit) const {
    return static_cast<int32_t>(unit % ops::kPeerBlockUnits) * p_.size / ops::kPeerBlockUnits;
  }
  FASTLLM_PEER_FN char* Line(int32_t box, int64_t number) const {
    return static_cast<char*>(p_.boxes[box]) + number * ops::kPeerLineBytes;
  }
  // Where a rank's unit lies in a box, and where a unit of the result does.
  FASTLLM_PEER_FN char* Parcel(int32_t box, int32_t from, int64_t unit) const {
    return Line(box, (int64_t{parity_} * p_.size + from) * p_.capacity + unit);
  }
  FASTLLM_PEER_FN char* Outcome(int32_t box, int64_t unit) const {
    return Line(box, (int64_t{2} * p_.size + parity_) * p_.capacity + unit);
  }

  FASTLLM_PEER_FN void Put(char* line, uint64_t unit) {
    const uint64_t flag = uint64_t{epoch_} << 32;
    memory_->Put(line, flag | (unit & 0xffffffffu), flag | (unit >> 32));
  }
  FASTLLM_PEER_FN bool Take(const char* line, uint64_t* unit) {
    uint64_t low = 0, high = 0;
    if (!memory_->Take(line, epoch_, &low, &high)) return false;
    *unit = (low & 0xffffffffu) | (high << 32);
    return true;
  }

  FASTLLM_PEER_FN bool Add(int64_t unit, uint64_t* total) {
    float sum[Codec::kValues] = {};
    if (!Total(unit, Codec::Load(p_.data, unit, p_.count), sum)) return false;
    *total = Codec::Pack(sum);
    return true;
  }

  const ops::PeerReduceParams& p_;
  const uint32_t epoch_;
  const int32_t parity_;
  Memory* const memory_;
};

}  // namespace fastllm::cuda
