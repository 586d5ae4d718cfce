// peer_reduce on threads in place of devices: the protocol of cuda/comm/peer_steps.h over atomics.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>

#include "cuda/comm/peer_picks.h"
#include "cuda/comm/peer_steps.h"
#include "ops/contract/peer_reduce.h"

namespace fastllm::ops::peer_threads {

// bfloat16, rounded to the nearest, ties to even.
struct Bf16 {
  uint16_t bits = 0;
  Bf16() = default;
  explicit Bf16(float v) {
    const auto b = std::bit_cast<uint32_t>(v);
    bits = static_cast<uint16_t>((b + 0x7fff + (b >> 16 & 1)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
  bool operator==(const Bf16&) const = default;
};

template <typename T>
struct Codec {
  static constexpr int32_t kValues = kPeerUnitBytes / sizeof(T);
  static void Unpack(uint64_t unit, float* values) {
    T own[kValues];
    std::memcpy(static_cast<void*>(own), &unit, sizeof(unit));
    for (int i = 0; i < kValues; ++i) values[i] = static_cast<float>(own[i]);
  }
  static uint64_t Pack(const float* values) {
    T own[kValues];
    for (int i = 0; i < kValues; ++i) own[i] = T(values[i]);
    uint64_t unit = 0;
    std::memcpy(&unit, own, sizeof(unit));
    return unit;
  }
  static size_t Bytes(int64_t unit, int64_t count) {
    return static_cast<size_t>(std::min<int64_t>(kValues, count - unit * kValues)) * sizeof(T);
  }
  static uint64_t Load(const void* data, int64_t unit, int64_t count) {
    uint64_t out = 0;
    std::memcpy(&out, static_cast<const T*>(data) + unit * kValues, Bytes(unit, count));
    return out;
  }
  static void Store(void* data, int64_t unit, int64_t count, uint64_t value) {
    std::memcpy(static_cast<void*>(static_cast<T*>(data) + unit * kValues), &value, Bytes(unit, count));
  }
};

struct Memory {
  const uint32_t* stop;

  static std::atomic_ref<uint64_t> Word(const void* line, int i) {
    return std::atomic_ref<uint64_t>(static_cast<uint64_t*>(const_cast<void*>(line))[i]);
  }
  void Put(void* line, uint64_t low, uint64_t high) const {
    Word(line, 1).store(high, std::memory_order_relaxed);  // in any order
    Word(line, 0).store(low, std::memory_order_relaxed);
  }
  bool Take(const void* line, uint32_t epoch, uint64_t* low, uint64_t* high) const {
    for (;;) {
      *low = Word(line, 0).load(std::memory_order_relaxed);
      *high = Word(line, 1).load(std::memory_order_relaxed);
      if (*low >> 32 == epoch && *high >> 32 == epoch) return true;
      if (std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(stop)).load() != 0) return false;
      std::this_thread::yield();
    }
  }
};

// One call on one rank: block after block, as the kernel does with a thread for each unit. Whether all came.
template <typename T>
bool Reduce(const PeerReduceParams& p) {
  Memory memory{p.stop};
  const int64_t units = PeerUnits(p.count * static_cast<int64_t>(sizeof(T)));
  for (int64_t block = 0; block < PeerBlocks(units); ++block) {
    const uint32_t epoch = cuda::NextEpoch(p.epochs[block]);
    cuda::PeerSteps<Codec<T>, Memory> steps(p, epoch, &memory);
    const int64_t first = block * kPeerBlockUnits, end = std::min(units, first + kPeerBlockUnits);
    bool came = true;
    const auto each = [&](const std::function<bool(int64_t)>& step) {
      for (int64_t u = first; came && u < end; ++u) came = step(u);
    };
    if (p.two_shots) {
      each([&](int64_t u) { return steps.SendShare(u), true; });
      each([&](int64_t u) { return steps.Combine(u); });
      each([&](int64_t u) { return steps.Collect(u); });
    } else {
      each([&](int64_t u) { return steps.Send(u), true; });
      each([&](int64_t u) { return steps.Receive(u); });
    }
    if (!came) return false;
    p.epochs[block] = epoch;
  }
  return true;
}

// The same of peer_reduce_norm: row after row, as the kernel does with a block for each.
template <typename T>
bool ReduceNorm(const PeerReduceNormParams& p) {
  constexpr int32_t kValues = Codec<T>::kValues;
  const int64_t units = p.norm.hidden / kValues, blocks = PeerBlocks(units);
  Memory memory{p.peers.stop};
  for (int64_t row = 0; row < p.norm.num_tokens; ++row) {
    const int64_t first = row * blocks * kPeerBlockUnits;
    const auto at = [&](const void* data) { return static_cast<const T*>(data) + row * p.norm.hidden; };
    const auto steps = [&](int64_t u) {
      const uint32_t epoch = cuda::NextEpoch(p.peers.epochs[row * blocks + u / kPeerBlockUnits]);
      return cuda::PeerSteps<Codec<T>, Memory>(p.peers, epoch, &memory);
    };
    const auto own = [&](int64_t u) { return Codec<T>::Load(at(p.norm.x), u, p.norm.hidden); };
    for (int64_t u = 0; u < units; ++u) steps(u).Tell(first + u, own(u));
    T* const residual = const_cast<T*>(at(p.norm.residual));
    float squares = 0.0f;
    for (int64_t u = 0; u < units; ++u) {
      float sum[kValues] = {};
      if (!steps(u).Total(first + u, own(u), sum)) return false;
      for (int32_t i = 0; i < kValues; ++i) {
        T& h = residual[u * kValues + i];
        h = T(static_cast<float>(T(sum[i])) + static_cast<float>(h));
        squares += static_cast<float>(h) * static_cast<float>(h);
      }
    }
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(p.norm.hidden) + p.norm.eps);
    for (int64_t i = 0; i < p.norm.hidden; ++i) {
      const float weight = static_cast<float>(static_cast<const T*>(p.norm.weight)[i]);
      const_cast<T*>(at(p.norm.out))[i] = T(static_cast<float>(residual[i]) * scale * weight);
    }
    for (int64_t b = 0; b < blocks; ++b) {
      uint32_t& epoch = p.peers.epochs[row * blocks + b];
      epoch = cuda::NextEpoch(epoch);
    }
  }
  return true;
}

// The same of peer_argmax, row after row.
inline bool Argmax(const PeerArgmaxParams& p) {
  Memory memory{p.peers.stop};
  for (int32_t row = 0; row < p.num_rows; ++row) {
    const uint32_t epoch = cuda::NextEpoch(p.peers.epochs[row]);
    const float* const logits = p.logits + row * p.stride;
    float value = 0.0f;
    uint32_t id = kPeerPickNothing, finite = 0, nan = 0;
    for (int32_t i = 0; i < p.width; ++i) {
      nan |= std::isnan(logits[i]) ? 1u : 0u;
      finite |= std::isfinite(logits[i]) ? kPeerPickFinite : 0u;
      if (!(logits[i] > -INFINITY) || (id != kPeerPickNothing && !(logits[i] > value))) continue;
      value = logits[i];
      id = static_cast<uint32_t>(p.first_id + i);
    }
    const uint64_t own = uint64_t{nan != 0 ? kPeerPickNan : id | finite} << 32 | std::bit_cast<uint32_t>(value);
    cuda::PeerSteps<Codec<float>, Memory> steps(p.peers, epoch, &memory);
    const int64_t unit = int64_t{row} * kPeerBlockUnits;
    steps.Tell(unit, own);
    bool came = true;
    p.tokens[row] = cuda::PickAmongRanks(p.peers.size, [&](int32_t r, float* v, uint32_t* facts) {
      uint64_t said = own;
      came &= r == p.peers.rank || steps.Fetch(unit, r, &said);
      *v = std::bit_cast<float>(static_cast<uint32_t>(said));
      *facts = static_cast<uint32_t>(said >> 32);
      return came;
    });
    if (!came) return false;
    p.peers.epochs[row] = epoch;
  }
  return true;
}

}  // namespace fastllm::ops::peer_threads
