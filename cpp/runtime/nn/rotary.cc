#include "runtime/nn/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fastllm::runtime {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

// Llama 3.1: waves longer than original/low_freq_factor are stretched, those shorter than original/high_freq_factor
// kept, those between are blended.
double Llama3Frequency(const RopeConfig& rope, double freq) {
  const double rotations = rope.original_max_position * freq / kTwoPi;  // over the original context
  if (rotations < rope.low_freq_factor) return freq / rope.factor;
  if (rotations > rope.high_freq_factor) return freq;
  const double smooth = (rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * freq / rope.factor + smooth * freq;
}

// The pair index whose wave turns `rotations` times over the original context.
double YarnDim(const RopeConfig& rope, double rotations) {
  return rope.rotary_dim * std::log(rope.original_max_position / (rotations * kTwoPi)) / (2.0 * std::log(rope.theta));
}

void ApplyYarn(const RopeConfig& rope, std::vector<double>& freqs) {
  double low = YarnDim(rope, rope.beta_fast);
  double high = YarnDim(rope, rope.beta_slow);
  if (rope.yarn_truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rope.rotary_dim - 1.0);
  if (low == high) high += 0.001;  // the paper's ramp has no step
  for (size_t i = 0; i < freqs.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    freqs[i] = freqs[i] * (1.0 - ramp) + freqs[i] / rope.factor * ramp;
  }
}

}  // namespace

std::vector<double> RopeFrequencies(const RopeConfig& rope) {
  std::vector<double> freqs(rope.rotary_dim / 2);
  for (size_t i = 0; i < freqs.size(); ++i) {
    freqs[i] = std::pow(rope.theta, -2.0 * static_cast<double>(i) / rope.rotary_dim);
  }
  switch (rope.scaling) {
    case RopeConfig::Scaling::kNone:
    case RopeConfig::Scaling::kDynamic: break;
    case RopeConfig::Scaling::kLinear:
      for (double& f : freqs) f /= rope.factor;
      break;
    case RopeConfig::Scaling::kLlama3:
      for (double& f : freqs) f = Llama3Frequency(rope, f);
      break;
    case RopeConfig::Scaling::kYarn: ApplyYarn(rope, freqs); break;
  }
  for (size_t i = 0; i < rope.freq_factors.size() && i < freqs.size(); ++i) freqs[i] /= rope.freq_factors[i];
  return freqs;
}

double RopeAttentionFactor(const RopeConfig& rope) {
  if (rope.scaling != RopeConfig::Scaling::kYarn) return 1.0;
  if (rope.attention_factor > 0.0) return rope.attention_factor;
  return rope.factor <= 1.0 ? 1.0 : 0.1 * std::log(rope.factor) + 1.0;
}

Rotary::Rotary(Builder& b, const RopeConfig& rope) : rotary_dim_(rope.rotary_dim), interleaved_(rope.interleaved) {
  const std::vector<double> freqs = RopeFrequencies(rope);
  const double scale = RopeAttentionFactor(rope);
  const size_t half = freqs.size();
  std::vector<float> cos_sin(static_cast<size_t>(b.max_positions()) * 2 * half);
  for (int32_t pos = 0; pos < b.max_positions(); ++pos) {
    float* row = cos_sin.data() + static_cast<size_t>(pos) * 2 * half;
    for (size_t i = 0; i < half; ++i) {
      row[i] = static_cast<float>(scale * std::cos(pos * freqs[i]));
      row[half + i] = static_cast<float>(scale * std::sin(pos * freqs[i]));
    }
  }
  cos_sin_ = b.Constant(cos_sin);
}

}  // namespace fastllm::runtime
