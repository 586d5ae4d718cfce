// The end of a work item of the Hopper prefill kernel (prefill_hopper.cuh): rows written, or the parts of a row tile
// added up. A warp has 16 rows to itself here.
#pragma once

#include "cuda/attention/hopper_tile.cuh"

namespace fastllm::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Of the tile's row r.
template <typename T, int kHeadDim>
__device__ __forceinline__ T* OutRow(const PrefillArgs<T>& a, const HopperPlace& place, int32_t r) {
  const int32_t row = place.tile.first_row + r;
  const int32_t token = a.TokenOf(row);
  const int32_t head = place.kv_head * a.group + row - token * a.group;
  return a.out + (place.tile.token + token) * a.out_stride + static_cast<int64_t>(head) * kHeadDim;
}

// Sums of whole rows.
template <int kHeadDim>
__device__ __forceinline__ void SumQuad(HopperState<kHeadDim>& st) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    st.l[j] += __shfl_xor_sync(0xffffffffu, st.l[j], 1);
    st.l[j] += __shfl_xor_sync(0xffffffffu, st.l[j], 2);
  }
}

// Transposes the 4x4 matrix whose rows are the four lanes of a quad.
__device__ __forceinline__ void TransposeQuad(uint32_t (&r)[4]) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = (threadIdx.x & bit) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? r[i] : r[i | bit], bit);
      (upper ? r[i] : r[i | bit]) = got;
    }
  }
}

// Divides by the sums and writes the warp's rows. row0: the warp's first row in the tile.
template <typename T, int kHeadDim>
__device__ __forceinline__ void WriteRows(const HopperState<kHeadDim>& st, const PrefillArgs<T>& a,
                                          const HopperPlace& place, int row0) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const float inverse = 1.0f / st.l[j];
    const int32_t row = row0 + lane / 4 + j * 8;
    const bool valid = row < place.RowsLeft(a);
    // Lane l of a quad gets columns 8 l of each 32.
    T* to = OutRow<T, kHeadDim>(a, place, valid ? row : 0) + lane % 4 * 8;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; n += 4) {
      uint32_t r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        r[i] = PackTwo<T>(st.o[4 * (n + i) + 2 * j] * inverse, st.o[4 * (n + i) + 2 * j + 1] * inverse);
      }
      TransposeQuad(r);
      if (valid) __stcs(reinterpret_cast<uint4*>(to + n * 8), make_uint4(r[0], r[1], r[2], r[3]));
    }
  }
}

template <typename T, int kHeadDim>
__device__ __forceinline__ void StorePart(const HopperState<kHeadDim>& st, const HopperArgs<T>& args, int64_t slot,
                                          int row0) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int64_t row = slot * kPrefillRows + row0 + lane / 4 + j * 8;
    float* to = args.part_out + row * kHeadDim + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      *reinterpret_cast<float2*>(to + n * 8) = make_float2(st.o[4 * n + 2 * j], st.o[4 * n + 2 * j + 1]);
    }
    if (lane % 4 == 0) args.part_sums[row] = make_float2(st.m[j], st.l[j]);
  }
}

// Adds up the parts of one row, in their order, and writes it. row: in the tile. One warp.
template <typename T, int kHeadDim>
__device__ __forceinline__ void AddRow(const HopperArgs<T>& args, const HopperPlace& place, int64_t slot, int row) {
  constexpr int kFours = kHeadDim / 4;
  constexpr int kTogether = 8;  // loads in flight
  const int lane = threadIdx.x & 31;
  const int32_t parts = place.tile.parts;
  const float2 ml =
      lane < parts ? __ldcg(&args.part_sums[(slot + lane) * kPrefillRows + row]) : make_float2(-INFINITY, 0.0f);
  float top = ml.x;
#pragma unroll
  for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
  float weight = Exp2((ml.x - top) * args.a.scale_log2);
  float sum = weight * ml.y;
#pragma unroll
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
  weight /= sum;
  T* to = OutRow<T, kHeadDim>(args.a, place, row);
#pragma unroll
  for (int first = 0; first < kFours; first += 32) {
    const int i = min(first + lane, kFours - 1);
    float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    for (int base = 0; base < parts; base += kTogether) {
      float4 x[kTogether];
#pragma unroll
      for (int p = 0; p < kTogether; ++p) {
        const int64_t from = (slot + min(base + p, parts - 1)) * kPrefillRows + row;
        x[p] = __ldcg(reinterpret_cast<const float4*>(args.part_out + from * kHeadDim) + i);
      }
#pragma unroll
      for (int p = 0; p < kTogether; ++p) {
        const float w = __shfl_sync(0xffffffffu, weight, base + p);  // 0 past the last part
        acc =
            make_float4(fmaf(w, x[p].x, acc.x), fmaf(w, x[p].y, acc.y), fmaf(w, x[p].z, acc.z), fmaf(w, x[p].w, acc.w));
      }
    }
    if (first + lane < kFours) {
      *reinterpret_cast<uint2*>(to + i * 4) = make_uint2(PackTwo<T>(acc.x, acc.y), PackTwo<T>(acc.z, acc.w));
    }
  }
}

// Counts this warp in, over all parts, and returns how many were before it; what each wrote before is then seen. One
// warp.
__device__ __forceinline__ uint32_t CountIn(uint32_t* counter) {
  __threadfence();
  __syncwarp();
  uint32_t before = 0;
  if ((threadIdx.x & 31) == 0) before = atomicAdd(counter, 1u);
  return __shfl_sync(0xffffffffu, before, 0);
}

// A part: leaves the warp's rows to the others. If the parts run side by side, each then adds up its share of the rows;
// else the last to come adds up all. Counters are back at zero in the end.
template <typename T, int kHeadDim>
__device__ __forceinline__ void FinishPart(const HopperState<kHeadDim>& st, const HopperArgs<T>& args,
                                           const HopperPlace& place, int row0) {
  const int32_t parts = place.tile.parts;
  const int32_t slot = place.tile.slot + place.kv_head * parts;
  const int32_t rows = min(place.RowsLeft(args.a) - row0, 16);
  uint32_t* counter = args.counters + 1 + slot * kPrefillWarps + row0 / 16;
  StorePart<T, kHeadDim>(st, args, slot + place.tile.part, row0);
  const bool last = CountIn(counter) == static_cast<uint32_t>(parts) - 1;
  if (place.tile.together == 0 && !last) return;
  int first = 0;
  int step = 1;
  if (place.tile.together != 0) {
    while (*static_cast<volatile uint32_t*>(counter) < static_cast<uint32_t>(parts)) {
    }
    first = place.tile.part;
    step = parts;
  }
  __threadfence();
  for (int r = first; r < rows; r += step) AddRow<T, kHeadDim>(args, place, slot, row0 + r);
  if (place.tile.together == 0 || CountIn(counter) == 2 * static_cast<uint32_t>(parts) - 1) *counter = 0;
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace fastllm::cuda
