// peer_reduce on a device: a thread for each unit. contract/peer_reduce.h, comm/peer_steps.h.
#pragma once

#include <cstdint>

#include "cuda/comm/peer_steps.h"
#include "cuda/common/types.cuh"

namespace fastllm::cuda {

template <typename T>
struct PeerCodec {
  static constexpr int32_t kValues = ops::kPeerUnitBytes / sizeof(T);

  union Bits {
    uint64_t unit;
    T values[kValues];
    __device__ Bits() : unit(0) {}
  };

  __device__ __forceinline__ static void Unpack(uint64_t unit, float* values) {
    Bits bits;
    bits.unit = unit;
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] = ToFloat(bits.values[i]);
  }
  __device__ __forceinline__ static uint64_t Pack(const float* values) {
    Bits bits;
#pragma unroll
    for (int i = 0; i < kValues; ++i) bits.values[i] = FromFloat<T>(values[i]);
    return bits.unit;
  }
  __device__ __forceinline__ static uint64_t Load(const void* data, int64_t unit, int64_t count) {
    const T* at = static_cast<const T*>(data) + unit * kValues;
    if ((unit + 1) * kValues <= count) return *reinterpret_cast<const uint64_t*>(at);
    Bits bits;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      if (unit * kValues + i < count) bits.values[i] = at[i];
    }
    return bits.unit;
  }
  __device__ __forceinline__ static void Store(void* data, int64_t unit, int64_t count, uint64_t value) {
    T* at = static_cast<T*>(data) + unit * kValues;
    if ((unit + 1) * kValues <= count) {
      *reinterpret_cast<uint64_t*>(at) = value;
      return;
    }
    Bits bits;
    bits.unit = value;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      if (unit * kValues + i < count) at[i] = bits.values[i];
    }
  }
};

// Lines in memory of this device or of a peer. Words of 64 bits of a vector are each written and read whole.
struct PeerMemory {
  const uint32_t* stop;

  __device__ __forceinline__ void Put(void* line, uint64_t low, uint64_t high) const {
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(line), "l"(low), "l"(high) : "memory");
  }
  __device__ __forceinline__ bool Take(const void* line, uint32_t epoch, uint64_t* low, uint64_t* high) const {
    constexpr uint32_t kLooks = 4096;  // between looks at the word in host memory, which is far away
    for (uint32_t looks = 1;; ++looks) {
      uint64_t a, b;
      asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(line) : "memory");
      if (static_cast<uint32_t>(a >> 32) == epoch && static_cast<uint32_t>(b >> 32) == epoch) {
        *low = a;
        *high = b;
        return true;
      }
      if (looks % kLooks == 0 && Stopped()) return false;
    }
  }
  __device__ __forceinline__ bool Stopped() const {
    uint32_t word;
    asm volatile("ld.relaxed.sys.b32 %0, [%1];" : "=r"(word) : "l"(stop) : "memory");
    return word != 0;
  }
};

// A block of kPeerBlockUnits threads. Not to be launched ahead of the end of its predecessor: that a rank has ended a
// call is what its next one says.
template <typename T, bool kTwoShots>
__global__ void __launch_bounds__(ops::kPeerBlockUnits)
    PeerReduceKernel(const __grid_constant__ ops::PeerReduceParams p) {
  const uint32_t epoch = NextEpoch(p.epochs[blockIdx.x]);
  const int64_t unit = int64_t{blockIdx.x} * ops::kPeerBlockUnits + threadIdx.x;
  if (unit * PeerCodec<T>::kValues < p.count) {
    PeerMemory memory{p.stop};
    PeerSteps<PeerCodec<T>, PeerMemory> steps(p, epoch, &memory);
    if constexpr (kTwoShots) {
      steps.SendShare(unit);
      if (steps.Combine(unit)) steps.Collect(unit);
    } else {
      steps.Send(unit);
      steps.Receive(unit);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) p.epochs[blockIdx.x] = epoch;
}

}  // namespace fastllm::cuda
