#pragma once

#include "fastllm/sampling_params.h"
#include "fastllm/status.h"

namespace fastllm::api {

// kInvalidArgument, with the name, for a text that is neither empty nor a JSON object.
Status CheckJsonObject(const char* name, const JsonText& json);

}  // namespace fastllm::api
