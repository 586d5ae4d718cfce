// The declarative weight map of a model: where in a checkpoint each parameter comes from.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "fastllm/status.h"
#include "runtime/nn/param.h"
#include "runtime/tensor/placement.h"
#include "runtime/weights/tensor_source.h"

namespace fastllm::runtime {

// How tensor parallelism cuts a parameter: not at all, by rows of each part (output features), or by columns (input
// features).
enum class ShardAxis : uint8_t { kNone, kRows, kCols };

// One checkpoint tensor that fills part `part` of the parameter `param`. "{}" stands for the layer index.
struct WeightRule {
  std::string_view param;
  int32_t part = 0;
  std::string_view hf;
  std::string_view gguf;
  ShardAxis shard = ShardAxis::kNone;
};

struct WeightMap {
  std::span<const WeightRule> rules;
  // Names (one '*' allowed) of tensors that a file may hold and the model does not need.
  std::span<const std::string_view> ignored;
};

// The checkpoint name that fills part `part` of `param` ("layers.3.attn.qkv.weight"); empty when no rule does.
std::string WeightName(const WeightMap& map, std::string_view param, int32_t part, bool gguf);

// Where weights go, and who brings them there.
struct WeightTarget {
  Placement placement;
  const ops::OpTable* ops = nullptr;
  ops::OpContext context;  // num_threads threads read the files; copies to a device go over context.stream
  bool keep_quantized = false;
  bool quantize_int8 = false;  // matrices of floats become 8-bit blocks (runtime/quant/quantize.h)
};

// Allocates every parameter and fills it from `source`: in the placement's type, or with keep_quantized as packed
// blocks or packed 16-bit floats where all parts of a matrix are stored in such. Every tensor of the source must be
// used or ignored. Errors: kNotFound names a missing tensor; kInvalidArgument names a tensor with its expected and
// found shape, or one that nothing in the model uses, or says that
// quantize_int8 finds no matrix of floats; kResourceExhausted says what the weights need and what is free.
Status LoadWeights(const TensorSource& source, const WeightMap& map, bool gguf_names, const WeightTarget& target,
                   ParamSet& params);

// Random weights that are a function of (seed, parameter, element) alone, the same on every device up to the rounding
// to its type: matrices uniform with standard deviation 0.02, norms near 1, biases near 0.
Status FillDummyWeights(uint64_t seed, const WeightTarget& target, ParamSet& params);

// Bytes that the parameters take, packed or in the placement's type.
int64_t ParamBytes(const ParamSet& params, const Placement& placement);

}  // namespace fastllm::runtime
