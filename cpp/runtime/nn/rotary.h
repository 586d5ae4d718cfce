#pragma once

#include <cstdint>
#include <vector>

#include "ops/contract/rope.h"
#include "runtime/nn/builder.h"
#include "runtime/nn/context.h"
#include "runtime/nn/rope_config.h"

namespace fastllm::runtime {

// Frequencies of the rotary_dim / 2 pairs in float64, with the config's scaling applied:
//   none     theta^(-2i/d)                                                   (Su et al. 2021)
//   linear   divided by factor                                              (Chen et al. 2023)
//   llama3   long waves divided by factor, short kept, a ramp between         (Llama 3.1 release)
//   yarn     the NTK-by-parts ramp between beta_fast and beta_slow rotations  (Peng et al. 2023)
//   dynamic  as none: its stretch starts past max_position_embeddings, which no sequence here reaches
// freq_factors, when given, divide the result.
std::vector<double> RopeFrequencies(const RopeConfig& rope);

// What yarn multiplies cosines and sines by; 1 for the others.
double RopeAttentionFactor(const RopeConfig& rope);

// Rotary position embedding with a table for the positions that the builder allows. One object serves all layers.
class Rotary {
 public:
  Rotary(Builder& b, const RopeConfig& rope, int32_t num_heads, int32_t num_kv_heads, int32_t head_dim);

  // In place on q [tokens, num_heads, head_dim] and k [tokens, num_kv_heads, head_dim] inside rows of `stride` floats.
  void Forward(const ForwardContext& ctx, float* q, float* k, int64_t stride) const;

 private:
  ops::RopeParams base_;  // all that does not change from step to step
  std::vector<float> cos_sin_;
  ops::RopeFn fn_;
};

}  // namespace fastllm::runtime
