// Which attention instances exist (instances/manifest.py lists the models that need them) and how they are launched.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <type_traits>

#include "cuda/attention/plan.h"
#include "cuda/launch/launch.h"
#include "ops/contract/attention.h"

namespace fastllm::cuda {

// Whether this build holds code for sm_90a (cuda/CMakeLists.txt), where the warpgroup instructions are.
#ifdef FASTLLM_SM90A
inline constexpr bool kHasHopperCode = true;
#else
inline constexpr bool kHasHopperCode = false;
#endif

// Whether prefill runs on the Hopper kernel on the current device.
inline bool PrefillOnHopper() { return kHasHopperCode && CurrentDevice().compute_capability == 90; }

// What plans are made for: the current device. A cache of fp8 is not read by the Hopper prefill kernel.
inline PlanDevice PlanDeviceFor(int32_t head_dim, ops::DType kv_dtype) {
  const int32_t multiprocessors = CurrentDevice().multiprocessors;
  const bool hopper = PrefillOnHopper() && kv_dtype != ops::DType::kF8E4M3;
  return {multiprocessors * DecodeBlocksPerSm(head_dim), hopper ? multiprocessors : 0};
}

// Whether the prefill kernels have instances for soft-capped logits: Gemma 2 has head_dim 128 and 256, and its
// activations do not fit float16.
template <typename T, int kHeadDim>
inline constexpr bool kHasSoftcap = std::is_same_v<T, __nv_bfloat16> && kHeadDim >= 128;

// Shapes as the kernels take them, checked.
struct AttentionShape {
  int32_t head_dim = 0;
  int32_t kv_heads = 0;
  int32_t group = 0;
  int32_t block_shift = 0;
};

// The parameters as kernels of this head_dim take them. Throws InternalError where they cannot.
AttentionShape CheckAttentionShape(const ops::PagedAttentionParams& p, int32_t head_dim);

// Our backend for bfloat16; head_dims of attention.cu.
template <int kHeadDim>
void OwnAttention(const ops::PagedAttentionParams& p, const ops::OpContext& ctx);

// What the variants come to in a kernel's arguments.
template <typename Args>
void SetVariant(Args& a, const ops::PagedAttentionParams& p) {
  constexpr float kLog2E = 1.44269504f;
  const bool capped = p.logit_softcap > 0.0f;
  const float scale = p.scale * p.cache.k_scale;
  a.scale_log2 = (capped ? p.logit_softcap : scale) * kLog2E;
  a.cap_inverse = capped ? scale / p.logit_softcap : 0.0f;
  a.value_scale = p.cache.v_scale;
  a.window = p.window > 0 ? std::min(p.window, kNoWindow) : kNoWindow;
}

// The launchers of one (dtype, head_dim); compiled one file per dtype and kernel so that they build side by side.
template <typename T, int kHeadDim>
void LaunchDecode(const ops::PagedAttentionParams& p, const AttentionShape& s, cudaStream_t stream);
template <typename T, int kHeadDim>
void LaunchPrefill(const ops::PagedAttentionParams& p, const AttentionShape& s, cudaStream_t stream);
// Of a cache of fp8.
template <typename T, int kHeadDim>
void LaunchDecodeFp8(const ops::PagedAttentionParams& p, const AttentionShape& s, cudaStream_t stream);
template <typename T, int kHeadDim>
void LaunchPrefillFp8(const ops::PagedAttentionParams& p, const AttentionShape& s, cudaStream_t stream);

}  // namespace fastllm::cuda
