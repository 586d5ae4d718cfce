#include "runtime/models/config/decoder_config.h"

#include <algorithm>
#include <cstdint>
#include <string>

namespace fastllm::runtime {
namespace {

int32_t Int32(const ConfigReader& r, const std::string& key, int64_t hi) {
  return static_cast<int32_t>(r.Int(key, 1, hi));
}

void CheckHeads(const ConfigReader& r, const std::string& kv_key, const ModelConfig& c) {
  if (c.num_heads % c.num_kv_heads != 0) {
    r.Fail(Status::InvalidArgument(r.where() + ": " + kv_key + " is " + std::to_string(c.num_kv_heads) +
                                   "; must divide the " + std::to_string(c.num_heads) + " attention heads"));
  }
}

int32_t DefaultHeadDim(const ConfigReader& r, const ModelConfig& c) {
  if (c.hidden_size % c.num_heads != 0) {
    r.Fail(Status::InvalidArgument(r.where() + ": the hidden size " + std::to_string(c.hidden_size) +
                                   " must be a multiple of the " + std::to_string(c.num_heads) +
                                   " attention heads when no head size is given"));
  }
  return std::max(1, c.hidden_size / c.num_heads);
}

}  // namespace

void ParseHfDecoder(const ConfigReader& r, ModelConfig* c) {
  c->vocab_size = Int32(r, "vocab_size", kMaxVocab);
  c->hidden_size = Int32(r, "hidden_size", kMaxWidth);
  c->intermediate_size = Int32(r, "intermediate_size", kMaxWidth);
  c->num_layers = Int32(r, "num_hidden_layers", kMaxLayers);
  c->num_heads = Int32(r, "num_attention_heads", kMaxHeads);
  c->num_kv_heads = static_cast<int32_t>(r.IntOr("num_key_value_heads", c->num_heads, 1, kMaxHeads));
  c->max_position_embeddings = Int32(r, "max_position_embeddings", kMaxPositions);
  c->rms_norm_eps = static_cast<float>(r.Number("rms_norm_eps", 0.0, 1.0));
  c->tie_word_embeddings = r.BoolOr("tie_word_embeddings", false);
  c->dtype = r.StringOr(r.Has("dtype") ? "dtype" : "torch_dtype", "");
  c->head_dim = r.Has("head_dim") ? Int32(r, "head_dim", kMaxHeadDim) : DefaultHeadDim(r, *c);
  CheckHeads(r, "num_key_value_heads", *c);
  ParseHfRope(r, c);
}

void CheckSilu(const ConfigReader& r) {
  const std::string act = r.StringOr("hidden_act", "silu");
  if (act != "silu") r.Refuse("hidden_act", "\"" + act + "\"", "this architecture has silu");
}

void CheckFullAttention(const ConfigReader& r, int32_t num_layers) {
  if (r.BoolOr("use_sliding_window", false)) {
    r.Refuse("use_sliding_window", "true", "this build has full attention for this architecture");
  }
  const nlohmann::json* types = r.Find("layer_types");
  if (types == nullptr) return;
  for (const nlohmann::json& type : *types) {
    if (!type.is_string() || type.get<std::string>() != "full_attention") {
      r.Refuse("layer_types", type.dump(), "this build has full_attention for this architecture");
      return;
    }
  }
  if (types->size() != static_cast<size_t>(num_layers)) {
    r.Fail(Status::InvalidArgument(r.where() + ": layer_types has " + std::to_string(types->size()) +
                                   " entries; num_hidden_layers is " + std::to_string(num_layers)));
  }
}

void ParseGgufDecoder(const ConfigReader& r, const std::string& arch, const TensorSource& tensors, ModelConfig* c) {
  const std::string p = arch + ".";
  const TensorInfo* embed = tensors.Find("token_embd.weight");
  if (embed == nullptr || embed->shape.size() != 2 || embed->shape[0] < 1 || embed->shape[0] > kMaxVocab) {
    r.Fail(Status::NotFound(r.where() + ": tensor token_embd.weight [vocab, hidden] is missing or not a matrix"));
    return;
  }
  c->gguf_names = true;
  c->vocab_size = static_cast<int32_t>(embed->shape[0]);
  c->hidden_size = Int32(r, p + "embedding_length", kMaxWidth);
  c->intermediate_size = Int32(r, p + "feed_forward_length", kMaxWidth);
  c->num_layers = Int32(r, p + "block_count", kMaxLayers);
  c->num_heads = Int32(r, p + "attention.head_count", kMaxHeads);
  c->num_kv_heads = static_cast<int32_t>(r.IntOr(p + "attention.head_count_kv", c->num_heads, 1, kMaxHeads));
  c->max_position_embeddings = Int32(r, p + "context_length", kMaxPositions);
  c->rms_norm_eps = static_cast<float>(r.Number(p + "attention.layer_norm_rms_epsilon", 0.0, 1.0));
  c->head_dim =
      r.Has(p + "attention.key_length") ? Int32(r, p + "attention.key_length", kMaxHeadDim) : DefaultHeadDim(r, *c);
  const int64_t value_dim = r.IntOr(p + "attention.value_length", c->head_dim, 1, kMaxHeadDim);
  if (value_dim != c->head_dim) {
    r.Refuse(p + "attention.value_length", std::to_string(value_dim),
             "this build needs it equal to the key length " + std::to_string(c->head_dim));
  }
  const int64_t window = r.IntOr(p + "attention.sliding_window", 0, 0, INT64_MAX);
  if (window > 0 && window < c->max_position_embeddings) {
    r.Refuse(p + "attention.sliding_window", std::to_string(window),
             "this build has full attention for this architecture, and the context is " +
                 std::to_string(c->max_position_embeddings));
  }
  c->tie_word_embeddings = tensors.Find("output.weight") == nullptr;
  c->attention_bias = tensors.Find("blk.0.attn_q.bias") != nullptr;
  c->attention_out_bias = tensors.Find("blk.0.attn_output.bias") != nullptr;
  c->mlp_bias = tensors.Find("blk.0.ffn_gate.bias") != nullptr;
  CheckHeads(r, p + "attention.head_count_kv", *c);
  ParseGgufRope(r, arch, tensors, c);
}

}  // namespace fastllm::runtime
