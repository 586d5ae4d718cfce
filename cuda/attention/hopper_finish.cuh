// The end of a work item of the Hopper prefill kernel (prefill_hopper.cuh): rows written, or the parts of a row tile
// added up. A warp has 16 rows to itself here.
#pragma once

#include "cuda/attention/hopper_tile.cuh"

namespace fastllm::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <typename T, int kHeadDim>
__device__ __forceinline__ T* OutRow(const PrefillArgs<T>& a, const HopperPlace& place, int32_t row) {
  const int32_t token = row / a.group;
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
    const int32_t row = place.tile.first_row + row0 + lane / 4 + j * 8;
    const bool valid = row < place.Rows(a.group);
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
      if (valid) *reinterpret_cast<uint4*>(to + n * 8) = make_uint4(r[0], r[1], r[2], r[3]);
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

// weight[p] in lane r < 16: what part p of row row0 + r counts in the result.
template <typename T>
__device__ __forceinline__ void PartWeights(const HopperArgs<T>& args, int32_t parts, int64_t slot, int row0,
                                            float (&weight)[kMaxPrefillParts]) {
  const int64_t row = slot * kPrefillRows + row0 + (threadIdx.x & 15);
  float sums[kMaxPrefillParts];
  float top = -INFINITY;
#pragma unroll
  for (int p = 0; p < kMaxPrefillParts; ++p) {
    const float2 ml = p < parts ? __ldcg(&args.part_sums[row + p * kPrefillRows]) : make_float2(-INFINITY, 0.0f);
    weight[p] = ml.x;
    sums[p] = ml.y;
    top = fmaxf(top, ml.x);
  }
  float sum = 0.0f;
#pragma unroll
  for (int p = 0; p < kMaxPrefillParts; ++p) {
    weight[p] = Exp2((weight[p] - top) * args.a.scale_log2);
    sum += weight[p] * sums[p];
  }
#pragma unroll
  for (int p = 0; p < kMaxPrefillParts; ++p) weight[p] /= sum;
}

// Adds up the parts of the warp's rows, in their order, and writes the rows.
template <typename T, int kHeadDim>
__device__ __forceinline__ void AddParts(const HopperArgs<T>& args, const HopperPlace& place, int64_t slot, int row0) {
  constexpr int kFours = kHeadDim / 4;
  float weight[kMaxPrefillParts];
  PartWeights(args, place.tile.parts, slot, row0, weight);
  const int32_t rows = min(place.Rows(args.a.group) - place.tile.first_row - row0, 16);
  for (int first = 0; first < rows * kFours; first += 64) {
    float4 acc[2] = {};
#pragma unroll
    for (int p = 0; p < kMaxPrefillParts; ++p) {
      if (p >= place.tile.parts) break;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = min(first + h * 32 + static_cast<int>(threadIdx.x & 31), rows * kFours - 1);
        const float w = __shfl_sync(0xffffffffu, weight[p], i / kFours);
        const int64_t row = (slot + p) * kPrefillRows + row0 + i / kFours;
        const float4 x = __ldcg(reinterpret_cast<const float4*>(args.part_out + row * kHeadDim) + i % kFours);
        acc[h] =
            make_float4(fmaf(w, x.x, acc[h].x), fmaf(w, x.y, acc[h].y), fmaf(w, x.z, acc[h].z), fmaf(w, x.w, acc[h].w));
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = first + h * 32 + static_cast<int>(threadIdx.x & 31);
      if (i >= rows * kFours) continue;
      T* to = OutRow<T, kHeadDim>(args.a, place, place.tile.first_row + row0 + i / kFours) + i % kFours * 4;
      *reinterpret_cast<uint2*>(to) = make_uint2(PackTwo<T>(acc[h].x, acc[h].y), PackTwo<T>(acc[h].z, acc[h].w));
    }
  }
}

// A part: leaves the warp's rows to the others; the last of the parts to do so adds them up.
template <typename T, int kHeadDim>
__device__ __forceinline__ void FinishPart(const HopperState<kHeadDim>& st, const HopperArgs<T>& args,
                                           const HopperPlace& place, int row0) {
  const int32_t slot = place.tile.slot + place.kv_head * place.tile.parts;
  StorePart<T, kHeadDim>(st, args, slot + place.tile.part, row0);
  __threadfence();
  __syncwarp();
  uint32_t arrived = 0;
  if ((threadIdx.x & 31) == 0) {
    // Wraps to zero when the last part arrives, ready for the next launch.
    arrived = atomicInc(args.counters + 1 + slot * kPrefillWarps + row0 / 16, place.tile.parts - 1);
  }
  if (__shfl_sync(0xffffffffu, arrived, 0) != static_cast<uint32_t>(place.tile.parts) - 1) return;
  __threadfence();
  AddParts<T, kHeadDim>(args, place, slot, row0);
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace fastllm::cuda
