// From a request's sampling values to the row that the sample op of a device takes.
#pragma once

#include <cstdint>

#include "core/step/step_plan.h"
#include "ops/contract/sampling.h"

namespace fastllm::runtime {

// output_index counts the tokens that the request has already produced: it is the counter of its random stream.
inline ops::SampleRow SampleRule(const SamplingSpec& spec, int32_t output_index) {
  ops::SampleRow row;
  row.temperature = spec.temperature;
  row.top_p = spec.top_p;
  row.min_p = spec.min_p;
  row.top_k = spec.top_k;
  row.seed = spec.seed;
  row.counter = static_cast<uint64_t>(output_index);
  return row;
}

// Whether the sample op of a device does all that the row asks for. Steps with other rows are sampled on the host.
inline bool DeviceCanSample(const SamplingSpec& spec) {
  return !spec.logits && !spec.logprobs && !spec.processors && spec.typical_p >= 1.0f && spec.top_n_sigma <= 0.0f &&
         spec.xtc_probability <= 0.0f;
}

}  // namespace fastllm::runtime
