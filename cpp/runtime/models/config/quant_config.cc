#include "runtime/models/config/quant_config.h"

#include <string>

namespace fastllm::runtime {
namespace {

using nlohmann::json;

constexpr const char* kKnown = "known: fp8, compressed-tensors; weights in blocks of integers are read from GGUF files";

std::string Text(const json* v) { return v == nullptr ? "null" : v->dump(); }

// Layers that the checkpoint leaves in their own type: the output head, which stays so here, and nothing else.
void CheckLeftOut(const ConfigReader& q, const std::string& key) {
  const json* list = q.Find(key);
  if (list == nullptr) return;
  if (!list->is_array()) return q.Refuse(key, list->dump(), "must be a list of names");
  for (const json& name : *list) {
    if (name != "lm_head") return q.Refuse(key, name.dump(), "only lm_head may be left out");
  }
}

// {"quant_method": "fp8", "activation_scheme": "dynamic", ...}
void CheckFp8(const ConfigReader& q) {
  const std::string scheme = q.StringOr("activation_scheme", "dynamic");
  if (scheme != "dynamic") q.Refuse("activation_scheme", "\"" + scheme + "\"", "known: dynamic");
  if (q.Has("weight_block_size")) {
    q.Refuse("weight_block_size", Text(q.Find("weight_block_size")), "scales are read by tensor or by row");
  }
  CheckLeftOut(q, "modules_to_not_convert");
  CheckLeftOut(q, "ignored_layers");
}

// One side of a group of compressed-tensors.
void CheckSide(const ConfigReader& group, const char* key, bool dynamic, const char* strategies) {
  const ConfigReader side = group.Object(key);
  const auto expect = [&](const std::string& name, const std::string& found, bool ok, const std::string& known) {
    if (!ok) side.Refuse(name, found, known);
  };
  if (!group.Has(key)) return group.Refuse(key, "null", "both weights and inputs must be in 8-bit floats");
  const std::string type = side.StringOr("type", "int");
  expect("type", "\"" + type + "\"", type == "float", "known: float");
  const int64_t bits = side.IntOr("num_bits", 0, 0, 64);
  expect("num_bits", std::to_string(bits), bits == 8, "known: 8");
  const std::string strategy = side.StringOr("strategy", "");
  const bool known = !strategy.empty() && std::string(strategies).find(strategy) != std::string::npos;
  expect("strategy", "\"" + strategy + "\"", known, std::string("known: ") + strategies);
  expect("dynamic", dynamic ? "false" : "true", side.BoolOr("dynamic", false) == dynamic,
         dynamic ? "known: true" : "known: false");
  expect("symmetric", "false", side.BoolOr("symmetric", true), "known: true");
}

// {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {..}, "input_activations": {..}}},
// ..}
void CheckCompressedTensors(const ConfigReader& q) {
  const json* groups = q.Find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->size() != 1) {
    return q.Refuse("config_groups", Text(groups), "one group for all linear layers is read");
  }
  const ConfigReader all = q.Object("config_groups");
  const ConfigReader group = all.Object(groups->begin().key());
  CheckSide(group, "weights", false, "channel, tensor");
  CheckSide(group, "input_activations", true, "token");
  CheckLeftOut(q, "ignore");
}

}  // namespace

LinearMethod ReadHfQuantization(const ConfigReader& config) {
  LinearMethod method;
  if (!config.Has("quantization_config")) return method;
  const ConfigReader q = config.Object("quantization_config");
  const json* name = q.Find("quant_method");
  method.stored = name != nullptr && name->is_string() ? name->get<std::string>() : "";
  method.kind = LinearKind::kFp8;
  if (method.stored == "fp8") {
    CheckFp8(q);
  } else if (method.stored == "compressed-tensors") {
    CheckCompressedTensors(q);
  } else {
    q.Refuse("quant_method", Text(name), kKnown);
  }
  return method;
}

}  // namespace fastllm::runtime
