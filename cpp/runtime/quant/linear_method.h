// How the weights of linear layers are kept and multiplied, chosen when a model is loaded.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fastllm::runtime {

enum class LinearKind : uint8_t {
  kPlain,  // in the type of the model, or as the GGUF blocks that they are stored in
  kFp8,    // 8-bit floats with a scale for each output channel; the input rounded likewise for each token
};

struct LinearMethod {
  LinearKind kind = LinearKind::kPlain;
  // Name of the method that the checkpoint states ("fp8", "compressed-tensors"): it holds the 8-bit weights and their
  // scales. Empty: its weights are floats, and made 8-bit ones while they are loaded.
  std::string stored;
  // A row's bits are the same whatever the number of rows beside it: quantised weights then meet inputs of 8 bits in
  // every step, also where many rows would be faster otherwise (ops/contract/quant_linear.h).
  bool batch_invariant = false;

  // Of the layer with that module path. The output head stays as it is, as in vLLM.
  LinearKind KindOf(std::string_view module) const { return module.starts_with("lm_head") ? LinearKind::kPlain : kind; }
};

}  // namespace fastllm::runtime
