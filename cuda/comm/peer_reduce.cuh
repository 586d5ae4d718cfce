// peer_reduce on a device: a thread for each unit. contract/peer_reduce.h, comm/peer_steps.h.
#pragma once

#include <cstdint>

#include "cuda/comm/peer_steps.h"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/reduce.cuh"
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

// A block of kPeerBlockUnits threads. That a rank has ended a call is what its next one says, so nothing is sent before
// the kernels before this one are done. The next one may load its weights while this one waits for the peers.
template <typename T, bool kTwoShots>
__global__ void __launch_bounds__(ops::kPeerBlockUnits)
    PeerReduceKernel(const __grid_constant__ ops::PeerReduceParams p) {
  WaitForPrevious();
  AllowNext();
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

// Brings a weight nearer, a piece by each thread of the block's last warp.
__device__ __forceinline__ void FetchWeight(const ops::NextWeight& next) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const int32_t piece = static_cast<int32_t>(threadIdx.x) - (static_cast<int32_t>(blockDim.x) - 32);
  if (piece < 0 || next.bytes == 0) return;
  const int64_t units = next.bytes / 16, count = int64_t{gridDim.x} * 32, i = int64_t{blockIdx.x} * 32 + piece;
  const int64_t begin = units * i / count;
  const auto size = static_cast<uint32_t>(units * (i + 1) / count - begin) * 16;
  if (size == 0) return;
  const char* const at = static_cast<const char*>(next.data) + begin * 16;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at), "r"(size) : "memory");
#endif
}

// A block for each row, of whole kPeerBlockUnits threads, which have up to kUnits units each. What the sum meets is on
// its way from memory while the peers' parts are on theirs.
template <typename T, int kUnits>
__global__ void __launch_bounds__(1024, kUnits == 1 ? 2 : 1)
    PeerReduceNormKernel(const __grid_constant__ ops::PeerReduceNormParams p) {
  using Codec = PeerCodec<T>;
  constexpr int kValues = Codec::kValues;
  __shared__ float shared[32];
  WaitForPrevious();
  AllowNext();
  const auto units = static_cast<int32_t>(p.norm.hidden / kValues);
  const int32_t row_blocks = (units + ops::kPeerBlockUnits - 1) / ops::kPeerBlockUnits;
  const int64_t first_block = int64_t{blockIdx.x} * row_blocks, data_row = int64_t{blockIdx.x} * units;
  const int32_t own_block = threadIdx.x / ops::kPeerBlockUnits, step = blockDim.x / ops::kPeerBlockUnits;
  const auto* const x = static_cast<const uint64_t*>(p.norm.x) + data_row;
  auto* const residual = static_cast<uint64_t*>(p.norm.residual) + data_row;
  PeerMemory memory{p.peers.stop};
  uint64_t own[kUnits], rest[kUnits];
  uint32_t epoch[kUnits];
#pragma unroll
  for (int j = 0; j < kUnits; ++j) {
    const auto u = static_cast<int32_t>(j * blockDim.x + threadIdx.x);
    if (u >= units) break;
    epoch[j] = NextEpoch(p.peers.epochs[first_block + own_block + j * step]);
    own[j] = x[u];
    PeerSteps<Codec, PeerMemory>(p.peers, epoch[j], &memory).Tell(first_block * ops::kPeerBlockUnits + u, own[j]);
    rest[j] = residual[u];
  }
  FetchWeight(p.next);
  float squares = 0.0f;
#pragma unroll
  for (int j = 0; j < kUnits; ++j) {
    const auto u = static_cast<int32_t>(j * blockDim.x + threadIdx.x);
    if (u >= units) break;
    float sum[kValues] = {}, before[kValues];
    PeerSteps<Codec, PeerMemory>(p.peers, epoch[j], &memory).Total(first_block * ops::kPeerBlockUnits + u, own[j], sum);
    Codec::Unpack(rest[j], before);
#pragma unroll
    for (int i = 0; i < kValues; ++i) sum[i] = ToFloat(FromFloat<T>(sum[i])) + before[i];
    rest[j] = Codec::Pack(sum);
    residual[u] = rest[j];
    Codec::Unpack(rest[j], sum);
#pragma unroll
    for (int i = 0; i < kValues; ++i) squares += sum[i] * sum[i];
  }
  const float scale = rsqrtf(BlockSum(squares, shared) / static_cast<float>(p.norm.hidden) + p.norm.eps);
#pragma unroll
  for (int j = 0; j < kUnits; ++j) {
    const auto u = static_cast<int32_t>(j * blockDim.x + threadIdx.x);
    if (u >= units) break;
    float values[kValues], gain[kValues];
    Codec::Unpack(rest[j], values);
    Codec::Unpack(static_cast<const uint64_t*>(p.norm.weight)[u], gain);
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] = values[i] * scale * gain[i];
    static_cast<uint64_t*>(p.norm.out)[data_row + u] = Codec::Pack(values);
    // BlockSum() has been past by all who read it.
    if (threadIdx.x % ops::kPeerBlockUnits == 0) p.peers.epochs[first_block + own_block + j * step] = epoch[j];
  }
}

}  // namespace fastllm::cuda
