// EngineConfig and SamplingParams from and to JSON text, through the field lists.
#pragma once

#include <string>
#include <string_view>

#include "fastllm/config.h"
#include "fastllm/export.h"
#include "fastllm/sampling_params.h"
#include "fastllm/status.h"

namespace fastllm {

// A flat object: {"model": "…", "block_size": 16}. Fields that are absent keep their defaults; null gives an optional
// field no value. Errors (kInvalidArgument): text that is not a JSON object, an unknown key (names the nearest), a
// value of the wrong type or out of range.
FASTLLM_API Result<EngineConfig> EngineConfigFromJson(std::string_view json);
FASTLLM_API Result<SamplingParams> SamplingParamsFromJson(std::string_view json);

// Every field, in declaration order.
FASTLLM_API std::string ToJson(const EngineConfig& config);
FASTLLM_API std::string ToJson(const SamplingParams& params);

}  // namespace fastllm
