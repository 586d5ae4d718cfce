// quantization_config of config.json: which LinearMethod a checkpoint states.
#pragma once

#include "runtime/models/config/config_reader.h"
#include "runtime/quant/linear_method.h"

namespace fastllm::runtime {

// Of the object config.json; plain when it states none. Read are methods with weights in 8-bit floats (e4m3) and inputs
// rounded anew for each token: "fp8" (Hugging Face, vLLM) and "compressed-tensors". Anything else is refused in the
// reader's status, by the name of the key.
LinearMethod ReadHfQuantization(const ConfigReader& config);

}  // namespace fastllm::runtime
