#include <cmath>
#include <string>

#include "runtime/models/config/decoder_config.h"

namespace fastllm::runtime {
namespace {

using Scaling = RopeConfig::Scaling;

void CheckRotaryDim(const ConfigReader& r, const std::string& key, int64_t dim, const ModelConfig& c) {
  if (dim < 2 || dim % 2 != 0 || dim > c.head_dim) {
    r.Fail(Status::InvalidArgument(r.where() + ": " + key + " makes " + std::to_string(dim) +
                                   " rotated elements of a head; must be even and in [2, " +
                                   std::to_string(c.head_dim) + "]"));
  }
}

double YarnScale(double factor, double mscale) { return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

// The keys of a scaling object, whichever of the two places it is in.
void ParseHfScaling(const ConfigReader& top, const ConfigReader& s, const std::string& type, RopeConfig* rope) {
  if (type == "default") return;
  const int64_t original = top.IntOr("original_max_position_embeddings",
                                     top.IntOr("max_position_embeddings", 1, 1, kMaxPositions), 1, kMaxPositions);
  rope->original_max_position =
      static_cast<int32_t>(s.IntOr("original_max_position_embeddings", original, 1, kMaxPositions));
  rope->factor = s.Number("factor", 1e-3, 1e6);
  if (type == "linear") {
    rope->scaling = Scaling::kLinear;
  } else if (type == "dynamic") {
    rope->scaling = Scaling::kDynamic;
  } else if (type == "llama3") {
    rope->scaling = Scaling::kLlama3;
    rope->low_freq_factor = s.Number("low_freq_factor", 0.0, 1e6);
    rope->high_freq_factor = s.Number("high_freq_factor", 0.0, 1e6);
    if (s.status().ok() && rope->high_freq_factor <= rope->low_freq_factor) {
      s.Fail(Status::InvalidArgument(s.where() + ": high_freq_factor is " + std::to_string(rope->high_freq_factor) +
                                     "; must be greater than low_freq_factor " +
                                     std::to_string(rope->low_freq_factor)));
    }
  } else if (type == "yarn") {
    rope->scaling = Scaling::kYarn;
    rope->beta_fast = s.NumberOr("beta_fast", 32.0, 1e-6, 1e6);
    rope->beta_slow = s.NumberOr("beta_slow", 1.0, 1e-6, 1e6);
    rope->yarn_truncate = s.BoolOr("truncate", true);
    const double mscale = s.NumberOr("mscale", 0.0, 0.0, 1e6), all = s.NumberOr("mscale_all_dim", 0.0, 0.0, 1e6);
    const double derived = mscale > 0.0 && all > 0.0 ? YarnScale(rope->factor, mscale) / YarnScale(rope->factor, all)
                                                     : YarnScale(rope->factor, 1.0);
    rope->attention_factor = s.NumberOr("attention_factor", derived, 1e-6, 1e6);
  } else {
    s.Refuse("rope_type", "\"" + type + "\"", "known: default, linear, dynamic, llama3, yarn");
  }
}

}  // namespace

void ParseHfRope(const ConfigReader& r, ModelConfig* c) {
  RopeConfig& rope = c->rope;
  const bool current = r.Has("rope_parameters");
  const ConfigReader s = r.Object(current ? "rope_parameters" : "rope_scaling");
  const double theta = r.NumberOr("rope_theta", 10000.0, 1.0, 1e15);
  rope.theta = current ? s.NumberOr("rope_theta", theta, 1.0, 1e15) : theta;
  const double partial =
      s.NumberOr("partial_rotary_factor", r.NumberOr("partial_rotary_factor", 1.0, 0.0, 1.0), 0.0, 1.0);
  const auto rotary_dim = static_cast<int64_t>(c->head_dim * partial);
  CheckRotaryDim(r, "partial_rotary_factor", rotary_dim, *c);
  rope.rotary_dim = static_cast<int32_t>(rotary_dim);
  ParseHfScaling(r, s, s.StringOr("rope_type", s.StringOr("type", "default")), &rope);
}

void ParseGgufRope(const ConfigReader& r, const std::string& arch, const TensorSource& tensors, ModelConfig* c) {
  RopeConfig& rope = c->rope;
  const std::string p = arch + ".rope.";
  rope.theta = r.NumberOr(p + "freq_base", 10000.0, 1.0, 1e15);
  const int64_t rotary_dim = r.IntOr(p + "dimension_count", c->head_dim, 1, kMaxHeadDim);
  CheckRotaryDim(r, p + "dimension_count", rotary_dim, *c);
  rope.rotary_dim = static_cast<int32_t>(rotary_dim);

  rope.factor = r.NumberOr(p + "scaling.factor", r.NumberOr(p + "scale_linear", 1.0, 0.0, 1e6), 0.0, 1e6);
  if (rope.factor == 0.0) rope.factor = 1.0;  // writers put 0 for "none"
  rope.original_max_position = static_cast<int32_t>(
      r.IntOr(p + "scaling.original_context_length", c->max_position_embeddings, 1, kMaxPositions));
  const std::string type = r.StringOr(p + "scaling.type", rope.factor != 1.0 ? "linear" : "none");
  if (type == "linear") {
    rope.scaling = Scaling::kLinear;
  } else if (type == "yarn") {
    rope.scaling = Scaling::kYarn;
    rope.beta_fast = r.NumberOr(p + "scaling.yarn_beta_fast", 32.0, 1e-6, 1e6);
    rope.beta_slow = r.NumberOr(p + "scaling.yarn_beta_slow", 1.0, 1e-6, 1e6);
    rope.attention_factor = r.NumberOr(p + "scaling.attn_factor", 1.0, 1e-6, 1e6) * YarnScale(rope.factor, 1.0);
  } else if (type != "none") {
    r.Refuse(p + "scaling.type", "\"" + type + "\"", "known: none, linear, yarn");
  }

  const TensorInfo* factors = tensors.Find("rope_freqs.weight");
  if (factors == nullptr || !r.status().ok()) return;
  if (factors->shape != std::vector<int64_t>{rotary_dim / 2} || factors->type != WeightType::kF32) {
    r.Fail(Status::InvalidArgument(r.where() + ": tensor rope_freqs.weight must be " + std::to_string(rotary_dim / 2) +
                                   " values of type F32"));
    return;
  }
  rope.freq_factors.resize(rotary_dim / 2);
  DequantizeRows(*factors, 0, rotary_dim / 2, rope.freq_factors.data());
  for (const float f : rope.freq_factors) {
    if (!(f > 0.0f) || !std::isfinite(f)) {
      r.Fail(Status::InvalidArgument(r.where() + ": rope_freqs.weight holds " + std::to_string(f) +
                                     "; must be finite and positive"));
      return;
    }
  }
}

}  // namespace fastllm::runtime
