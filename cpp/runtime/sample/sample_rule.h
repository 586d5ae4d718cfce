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

// Whether the row's logits depend on the tokens before.
inline bool HasPenalties(const SamplingSpec& spec) { return spec.logits && spec.logits->has_penalties(); }

// count_row: of the sequence's tallies; bias_begin: of its part of the step's biases.
inline ops::PenaltyRow PenaltyRule(const SamplingSpec& spec, int32_t count_row, int32_t bias_begin) {
  ops::PenaltyRow row;
  row.bias_begin = row.bias_end = bias_begin;
  if (!spec.logits) return row;
  row.bias_end += static_cast<int32_t>(spec.logits->logit_bias.size());
  if (!HasPenalties(spec)) return row;
  row.count_row = count_row;
  row.repetition_penalty = spec.logits->repetition_penalty;
  row.frequency_penalty = spec.logits->frequency_penalty;
  row.presence_penalty = spec.logits->presence_penalty;
  return row;
}

// Bans and biases that a row may bring along.
inline constexpr size_t kMostListed = 320;

// Top tokens that a row may have from the device.
inline constexpr int32_t kMostDeviceTops = 32;

// What a device's sampler has beside temperature, top_k, top_p, min_p and lists.
struct DeviceSampling {
  bool tallies = false;       // penalties
  bool raw_logprobs = false;  // those are what logprobs are
};

// Whether the ops of a device do all that the row asks for. Other rows are sampled on the host: all of a sequence's
// tokens on the one or on the other.
inline bool DeviceCanSample(const SamplingSpec& spec, const DeviceSampling& device) {
  size_t listed = spec.banned_until_min.size();
  if (spec.logits) {
    const LogitsSpec& l = *spec.logits;
    if (!l.allowed.empty() || !l.bad_words.empty() || l.dry_multiplier != 0.0f) return false;
    if (l.has_penalties() && !device.tallies) return false;
    listed += l.logit_bias.size();
  }
  if (spec.logprobs) {
    const LogprobsSpec& l = *spec.logprobs;
    if (!device.raw_logprobs || !l.ids.empty() || l.num_top < 0 || l.num_top > kMostDeviceTops) return false;
  }
  return listed <= kMostListed && !spec.processors && spec.typical_p >= 1.0f && spec.top_n_sigma <= 0.0f &&
         spec.xtc_probability <= 0.0f;
}

}  // namespace fastllm::runtime
