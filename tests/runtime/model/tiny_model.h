// A tiny Llama held in memory, and what its logits must be: a straightforward float64 transformer over whole
// sequences, written from the published formulas and sharing no code with the runtime.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/models/model_config.h"

namespace fastllm::runtime::testing {

class MemorySource : public TensorSource {
 public:
  void Set(const std::string& name, std::vector<int64_t> shape, std::vector<float> values) {
    auto& data = data_[name];
    data = std::move(values);
    TensorInfo t{name, std::move(shape), WeightType::kF32, reinterpret_cast<const uint8_t*>(data.data()),
                 data.size() * sizeof(float)};
    std::erase_if(tensors_, [&](const TensorInfo& old) { return old.name == name; });
    tensors_.push_back(std::move(t));
  }
  void Erase(const std::string& name) {
    std::erase_if(tensors_, [&](const TensorInfo& t) { return t.name == name; });
  }
  const TensorInfo* Find(std::string_view name) const override {
    for (const TensorInfo& t : tensors_) {
      if (t.name == name) return &t;
    }
    return nullptr;
  }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const std::vector<float>& values(const std::string& name) const { return data_.at(name); }

 private:
  std::map<std::string, std::vector<float>> data_;
  std::vector<TensorInfo> tensors_;
};

inline ModelConfig TinyConfig() {
  ModelConfig c;
  c.architecture = "LlamaForCausalLM";
  c.vocab_size = 61;
  c.hidden_size = 24;
  c.intermediate_size = 40;
  c.num_layers = 2;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 8;  // heads * head_dim is not the hidden size
  c.max_position_embeddings = 128;
  c.attention_bias = true;
  c.attention_out_bias = true;
  c.mlp_bias = true;
  c.rope.rotary_dim = 8;
  c.rope.theta = 500.0;
  return c;
}

inline std::unique_ptr<MemorySource> TinyWeights(const ModelConfig& c, uint32_t seed) {
  auto source = std::make_unique<MemorySource>();
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  const auto draw = [&](const std::string& name, std::vector<int64_t> shape, float mean, float sd) {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    std::vector<float> v(n);
    for (float& x : v) x = mean + sd * normal(rng);
    source->Set(name, std::move(shape), std::move(v));
  };
  const auto linear = [&](const std::string& name, int64_t out, int64_t in) {
    draw(name + ".weight", {out, in}, 0, 1.2f / std::sqrt(static_cast<float>(in)));
    draw(name + ".bias", {out}, 0, 0.3f);
  };
  draw("model.embed_tokens.weight", {c.vocab_size, c.hidden_size}, 0, 1);
  for (int32_t l = 0; l < c.num_layers; ++l) {
    const std::string p = "model.layers." + std::to_string(l) + ".";
    draw(p + "input_layernorm.weight", {c.hidden_size}, 1, 0.3f);
    draw(p + "post_attention_layernorm.weight", {c.hidden_size}, 1, 0.3f);
    linear(p + "self_attn.q_proj", c.num_heads * c.head_dim, c.hidden_size);
    linear(p + "self_attn.k_proj", c.num_kv_heads * c.head_dim, c.hidden_size);
    linear(p + "self_attn.v_proj", c.num_kv_heads * c.head_dim, c.hidden_size);
    linear(p + "self_attn.o_proj", c.hidden_size, c.num_heads * c.head_dim);
    linear(p + "mlp.gate_proj", c.intermediate_size, c.hidden_size);
    linear(p + "mlp.up_proj", c.intermediate_size, c.hidden_size);
    linear(p + "mlp.down_proj", c.hidden_size, c.intermediate_size);
  }
  draw("model.norm.weight", {c.hidden_size}, 1, 0.3f);
  draw("lm_head.weight", {c.vocab_size, c.hidden_size}, 0, 0.4f);
  return source;
}

class ReferenceModel {
 public:
  ReferenceModel(const ModelConfig& c, const MemorySource& w) : c_(c), w_(w) {}

  // [tokens][vocab]
  std::vector<std::vector<double>> Logits(const std::vector<int32_t>& tokens) const {
    std::vector<Vec> h;
    const auto& embed = w_.values("model.embed_tokens.weight");
    for (const int32_t t : tokens) {
      h.emplace_back(embed.begin() + t * c_.hidden_size, embed.begin() + (t + 1) * c_.hidden_size);
    }
    for (int32_t l = 0; l < c_.num_layers; ++l) Layer("model.layers." + std::to_string(l) + ".", h);
    std::vector<Vec> out;
    for (const Vec& x : h) out.push_back(Apply("lm_head", Norm("model.norm.weight", x), false));
    return out;
  }

 private:
  using Vec = std::vector<double>;

  Vec Apply(const std::string& name, const Vec& x, bool bias = true) const {
    const auto& w = w_.values(name + ".weight");
    Vec y(w.size() / x.size());
    for (size_t o = 0; o < y.size(); ++o) {
      y[o] = bias ? w_.values(name + ".bias")[o] : 0.0;
      for (size_t i = 0; i < x.size(); ++i) y[o] += double{w[o * x.size() + i]} * x[i];
    }
    return y;
  }

  Vec Norm(const std::string& name, const Vec& x) const {
    double sum = 0;
    for (const double v : x) sum += v * v;
    const double scale = 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + double{c_.rms_norm_eps});
    Vec y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * w_.values(name)[i];
    return y;
  }

  void Rotate(Vec& heads, size_t position) const {
    const size_t d = c_.head_dim, half = d / 2;
    for (size_t base = 0; base < heads.size(); base += d) {
      for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * std::pow(c_.rope.theta, -2.0 * i / d);
        const double a = heads[base + i], b = heads[base + i + half];
        heads[base + i] = a * std::cos(angle) - b * std::sin(angle);
        heads[base + i + half] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }

  void Layer(const std::string& p, std::vector<Vec>& h) const {
    std::vector<Vec> q, k, v;
    for (size_t t = 0; t < h.size(); ++t) {
      const Vec x = Norm(p + "input_layernorm.weight", h[t]);
      q.push_back(Apply(p + "self_attn.q_proj", x));
      k.push_back(Apply(p + "self_attn.k_proj", x));
      v.push_back(Apply(p + "self_attn.v_proj", x));
      Rotate(q.back(), t);
      Rotate(k.back(), t);
    }
    for (size_t t = 0; t < h.size(); ++t) {
      const Vec a = Apply(p + "self_attn.o_proj", Attend(q[t], k, v, t));
      for (size_t i = 0; i < a.size(); ++i) h[t][i] += a[i];
      const Vec x = Norm(p + "post_attention_layernorm.weight", h[t]);
      Vec gate = Apply(p + "mlp.gate_proj", x);
      const Vec up = Apply(p + "mlp.up_proj", x);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
      const Vec m = Apply(p + "mlp.down_proj", gate);
      for (size_t i = 0; i < m.size(); ++i) h[t][i] += m[i];
    }
  }

  Vec Attend(const Vec& q, const std::vector<Vec>& k, const std::vector<Vec>& v, size_t last) const {
    const size_t d = c_.head_dim, group = c_.num_heads / c_.num_kv_heads;
    Vec out(q.size(), 0.0);
    for (size_t head = 0; head < static_cast<size_t>(c_.num_heads); ++head) {
      Vec p(last + 1);
      double total = 0;
      for (size_t t = 0; t <= last; ++t) {
        double dot = 0;
        for (size_t i = 0; i < d; ++i) dot += q[head * d + i] * k[t][head / group * d + i];
        p[t] = std::exp(dot / std::sqrt(static_cast<double>(d)));
        total += p[t];
      }
      for (size_t t = 0; t <= last; ++t) {
        for (size_t i = 0; i < d; ++i) out[head * d + i] += p[t] / total * v[t][head / group * d + i];
      }
    }
    return out;
  }

  const ModelConfig& c_;
  const MemorySource& w_;
};

}  // namespace fastllm::runtime::testing
