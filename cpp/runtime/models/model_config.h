// ModelConfig: what a decoder-only transformer is, from config.json or GGUF metadata. No quantization, parallelism,
// tokenizer or graph here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fastllm/sampling_params.h"
#include "fastllm/status.h"
#include "runtime/nn/rope_config.h"
#include "runtime/quant/linear_method.h"
#include "runtime/weights/gguf.h"
#include "runtime/weights/tensor_source.h"

namespace fastllm::runtime {

struct ModelConfig {
  std::string architecture;  // HF class name, "LlamaForCausalLM"
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t max_position_embeddings = 0;
  float rms_norm_eps = 1e-5f;
  bool tie_word_embeddings = false;
  std::string dtype;                // the checkpoint's own, "bfloat16"; empty when it does not say
  bool attention_bias = false;      // q, k and v
  bool attention_out_bias = false;  // the output projection
  bool qk_norm = false;             // RMS norm of each head of q and k
  bool mlp_bias = false;
  bool gguf_names = false;  // tensors carry GGUF names
  std::vector<int32_t> eos_token_ids;
  RopeConfig rope;
};

// Sampling defaults that the model states; the other fields of params are SamplingParams' own.
struct SamplingDefaults {
  SamplingParams params;
  std::vector<std::string> stated;  // names of fields
};

// An opened model: its config, and its tensors (null for dummy weights). gguf points into tensors or is null.
struct ModelSource {
  ModelConfig config;
  std::unique_ptr<TensorSource> tensors;
  const GgufFile* gguf = nullptr;
  SamplingDefaults sampling;
  LinearMethod linear;  // that the checkpoint states
};

// Opens a .gguf file or a Hugging Face folder. load_format: auto, gguf, safetensors, dummy (folder with config.json
// only). generation_config says where sampling defaults come from: auto (the model), vllm (nowhere), or a folder with a
// generation_config.json, whose end-of-sequence ids then count in place of those in the model's own. Errors: kNotFound
// with what was looked for; kUnimplemented names the architecture and lists the known ones; kInvalidArgument names a
// config value that is missing or out of range; kDataLoss for damaged files.
Result<ModelSource> OpenModel(const std::string& path, const std::string& load_format,
                              const std::string& generation_config = "auto");

// What the option `quantization` (unset, "fp8" or "compressed-tensors") makes of an opened model. kInvalidArgument
// where it contradicts the checkpoint.
Result<LinearMethod> ChooseLinearMethod(const std::optional<std::string>& quantization, const ModelSource& source);

}  // namespace fastllm::runtime
