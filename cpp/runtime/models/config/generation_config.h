// The sampling defaults that a model brings: generation_config.json, or general.sampling.* of a GGUF file.
#pragma once

#include "runtime/models/config/config_reader.h"
#include "runtime/models/model_config.h"

namespace fastllm::runtime {

// temperature, top_k, top_p, min_p, repetition_penalty and max_new_tokens (as max_tokens), as vLLM takes them; other
// keys say nothing here. A value outside its limits is the reader's error.
void ReadHfSampling(const ConfigReader& reader, SamplingDefaults* out);

// temp, top_k, top_p, min_p, xtc_probability, xtc_threshold and penalty_repeat, as llama.cpp names them.
void ReadGgufSampling(const ConfigReader& reader, SamplingDefaults* out);

}  // namespace fastllm::runtime
