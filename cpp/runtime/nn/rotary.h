#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "runtime/nn/builder.h"
#include "runtime/nn/rope_config.h"
#include "runtime/tensor/tensors.h"

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

// The table of a rotary position embedding, for the positions that the builder allows. One object serves all layers.
class Rotary {
 public:
  Rotary(Builder& b, const RopeConfig& rope);

  // [max_positions, rotary_dim]: cosines, then sines.
  const float* cos_sin() const { return DataOf<const float>(cos_sin_); }
  int32_t rotary_dim() const { return rotary_dim_; }
  bool interleaved() const { return interleaved_; }

 private:
  at::Tensor cos_sin_;
  int32_t rotary_dim_;
  bool interleaved_;
};

}  // namespace fastllm::runtime
