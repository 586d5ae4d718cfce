// Which attention instances exist (instances/manifest.py lists the models that need them) and how they are launched.
#pragma once

#include "cuda/attention/plan.h"
#include "cuda/launch/launch.h"
#include "ops/contract/attention.h"

namespace fastllm::cuda {

// Shapes as the kernels take them, checked.
struct AttentionShape {
  int32_t head_dim = 0;
  int32_t kv_heads = 0;
  int32_t group = 0;
  int32_t block_shift = 0;
};

// The launchers of one (dtype, head_dim); compiled one file per dtype and kernel so that they build side by side.
template <typename T, int kHeadDim>
void LaunchDecode(const ops::PagedAttentionParams& p, const AttentionShape& s, cudaStream_t stream);
template <typename T, int kHeadDim>
void LaunchPrefill(const ops::PagedAttentionParams& p, const AttentionShape& s, cudaStream_t stream);

}  // namespace fastllm::cuda
