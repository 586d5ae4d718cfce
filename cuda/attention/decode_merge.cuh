// The end of a (sequence, KV head) pair in the decode kernel (decode.cuh): warps merged, cut pairs put together.
#pragma once

#include "cuda/attention/decode_tile.cuh"

namespace fastllm::cuda {

// The pair's place in the split: which parts there are and where this worker's goes.
struct PairPart {
  int32_t slot;   // of this worker's part, -1: the pair is not cut
  int32_t owner;  // the parts are at slots 2 owner + 1, 2 (owner + 1), 2 (owner + 2), ...
  int32_t parts;
};

__device__ __forceinline__ void StoreFour(float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; }

template <typename T>
__device__ __forceinline__ void StoreFour(T* to, float4 x) {
  *reinterpret_cast<uint2*>(to) = make_uint2(PackTwo<T>(x.x, x.y), PackTwo<T>(x.z, x.w));
}

__device__ __forceinline__ void AddScaled(float4& acc, float w, const float4& x) {
  acc.x += w * x.x;
  acc.y += w * x.y;
  acc.z += w * x.z;
  acc.w += w * x.w;
}

__device__ __forceinline__ float4 Scaled(const float4& x, float w) {
  return make_float4(x.x * w, x.y * w, x.z * w, x.w * w);
}

// Adds the parts of a cut pair and writes its output rows. Block-wide. scratch: kChunk * group elements.
template <typename T, typename KV, int kHeadDim>
__device__ void CombineParts(const DecodeArgs<T, KV>& a, const PairPart& part, T* out, float2* scratch) {
  constexpr int kFours = kHeadDim / 4;
  constexpr int kChunk = 64;
  const auto row = [&](int j) { return static_cast<int64_t>(2 * (part.owner + j) + (j == 0)) * a.group; };
  for (int first = 0; first < a.group * kFours; first += blockDim.x) {
    const int i = first + threadIdx.x;
    const int head = i / kFours;
    float top = -INFINITY;
    float sum = 0.0f;
    float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int base = 0; base < part.parts; base += kChunk) {
      const int n = min(kChunk, part.parts - base);
      __syncthreads();
      for (int e = threadIdx.x; e < n * a.group; e += blockDim.x) {
        scratch[e] = __ldcg(&a.part_sums[row(base + e / a.group) + e % a.group]);
      }
      __syncthreads();
      if (head >= a.group) continue;
      float new_top = top;
      for (int j = 0; j < n; ++j) new_top = fmaxf(new_top, scratch[j * a.group + head].x);
      const float alpha = Exp2(top - new_top);
      acc = Scaled(acc, alpha);
      sum *= alpha;
      top = new_top;
#pragma unroll 16
      for (int j = 0; j < n; ++j) {
        const float2 ml = scratch[j * a.group + head];
        const float w = Exp2(ml.x - top);
        sum += w * ml.y;
        AddScaled(acc, w,
                  __ldcg(reinterpret_cast<const float4*>(a.part_out + (row(base + j) + head) * kHeadDim) + i % kFours));
      }
    }
    if (head < a.group) StoreFour(out + head * kHeadDim + i % kFours * 4, Scaled(acc, a.value_scale / sum));
  }
}

// Puts a warp's state where the others see it: [warp, head, kRow] outputs and [warp, head] (max, sum).
template <typename T, typename KV, int kHeadDim, int kHeadTiles, int kRow>
__device__ __forceinline__ void ShareState(const DecodeState<kHeadDim, kHeadTiles>& s, const DecodeArgs<T, KV>& a,
                                           float* shared_out, float2* shared_ml) {
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
#pragma unroll
  for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float l = s.l[n][j];
#pragma unroll
      for (int d = 4; d < 32; d *= 2) l += __shfl_xor_sync(0xffffffffu, l, d);
      const int head = n * 8 + lane % 4 * 2 + j;
      if (head >= a.group) continue;
      if (lane < 4) shared_ml[warp * a.group + head] = make_float2(s.m[n][j], l);
      float* to = shared_out + (warp * a.group + head) * kRow + ValueOrder<KV>::First(lane);
#pragma unroll
      for (int d = 0; d < kHeadDim / 16; ++d) {
        to[d * 16] = s.o[n][d][j];
        to[d * 16 + ValueOrder<KV>::kSecond] = s.o[n][d][j + 2];
      }
    }
  }
}

// Merges the warps' states of a finished pair through shared memory. Block-wide; ends with a barrier.
template <typename T, typename KV, int kHeadDim, int kHeadTiles, int kStages>
__device__ void FinishPair(DecodeState<kHeadDim, kHeadTiles>& s, const DecodeArgs<T, KV>& a, const PairPart& part,
                           T* out, float* shared_out) {
  constexpr int kRow = DecodeShape<kHeadDim, kStages>::kRow;
  constexpr int kFours = kHeadDim / 4;
  __shared__ bool is_last;
  auto* shared_ml = reinterpret_cast<float2*>(shared_out + kDecodeWarps * a.group * kRow);
  ShareState<T, KV, kHeadDim, kHeadTiles, kRow>(s, a, shared_out, shared_ml);
  __syncthreads();
  for (int i = threadIdx.x; i < a.group * kFours; i += blockDim.x) {
    const int head = i / kFours;
    float top = -INFINITY;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) top = fmaxf(top, shared_ml[w * a.group + head].x);
    float sum = 0.0f;
    float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float2 ml = shared_ml[w * a.group + head];
      const float weight = Exp2(ml.x - top);
      sum += weight * ml.y;
      AddScaled(acc, weight,
                *reinterpret_cast<const float4*>(shared_out + (w * a.group + head) * kRow + i % kFours * 4));
    }
    if (part.slot < 0) {
      StoreFour(out + head * kHeadDim + i % kFours * 4, Scaled(acc, a.value_scale / sum));
    } else {
      const int64_t row = static_cast<int64_t>(part.slot) * a.group + head;
      StoreFour(a.part_out + row * kHeadDim + i % kFours * 4, acc);
      if (i % kFours == 0) a.part_sums[row] = make_float2(top, sum);
    }
  }
  if (part.slot >= 0) {
    __threadfence();
    __syncthreads();
    // Wraps to zero when the last part arrives, ready for the next launch.
    if (threadIdx.x == 0) is_last = atomicInc(a.counters + part.owner, part.parts - 1) == part.parts - 1;
    __syncthreads();
    if (is_last) {
      __threadfence();
      CombineParts<T, KV, kHeadDim>(a, part, out, reinterpret_cast<float2*>(shared_out));
    }
  }
  __syncthreads();
}

}  // namespace fastllm::cuda
