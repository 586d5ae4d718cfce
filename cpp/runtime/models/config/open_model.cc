#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/models/base/registry.h"
#include "runtime/models/config/config_reader.h"
#include "runtime/models/config/generation_config.h"
#include "runtime/models/config/quant_config.h"
#include "runtime/models/model_config.h"
#include "runtime/weights/renamed_source.h"
#include "runtime/weights/safetensors.h"

namespace fastllm::runtime {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uintmax_t kMaxJsonBytes = 64u << 20;

Result<json> ReadJson(const fs::path& path) {
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  if (error) return Status::NotFound("cannot read " + path.string() + ": " + error.message());
  if (size > kMaxJsonBytes) {
    return Status::InvalidArgument(path.string() + " has " + std::to_string(size) + " bytes; the limit is " +
                                   std::to_string(kMaxJsonBytes));
  }
  std::ifstream file(path, std::ios::binary);
  try {
    json value = json::parse(file);
    if (!value.is_object()) return Status::DataLoss(path.string() + " does not hold a JSON object");
    return value;
  } catch (const json::exception& e) {
    return Status::DataLoss(path.string() + " is not valid JSON: " + e.what());
  }
}

// Adds the id or ids under `key` that are not there yet.
void AddTokenIds(const ConfigReader& r, const std::string& key, int32_t vocab, std::vector<int32_t>* ids) {
  const json* v = r.Find(key);
  if (v == nullptr) return;
  const json list = v->is_array() ? *v : json::array({*v});
  for (const json& item : list) {
    const json wrapped = {{key, item}};
    const ConfigReader one(wrapped, r.where());
    const auto id = static_cast<int32_t>(one.Int(key, 0, vocab - 1));
    r.Fail(one.status());
    if (one.status().ok() && std::find(ids->begin(), ids->end(), id) == ids->end()) ids->push_back(id);
  }
}

bool SameData(const TensorInfo& a, const TensorInfo& b) {
  return a.type == b.type && a.shape == b.shape && a.nbytes == b.nbytes && std::memcmp(a.data, b.data, a.nbytes) == 0;
}

// A config that says "tied" may come with a head of its own: it counts when it differs from the embedding, as in
// transformers. A config that says "untied" must bring its head; one is never made up.
Status ResolveTie(const ModelEntry& entry, const TensorSource& tensors, ModelConfig* config) {
  const std::string head_name = WeightName(entry.weights, "lm_head.weight", 0, config->gguf_names);
  const TensorInfo* head = tensors.Find(head_name);
  if (config->tie_word_embeddings) {
    const TensorInfo* embed = tensors.Find(WeightName(entry.weights, "embed_tokens.weight", 0, config->gguf_names));
    if (head != nullptr && embed != nullptr && !SameData(*head, *embed)) config->tie_word_embeddings = false;
  } else if (head == nullptr) {
    return Status::NotFound("tensor " + head_name + " is missing, and tie_word_embeddings is false");
  }
  return Status::Ok();
}

// A tied matrix may have been saved under either of its names: one that goes by the head's is the embedding's.
void NameTiedEmbedding(const ModelEntry& entry, ModelSource* source) {
  const std::string embed = WeightName(entry.weights, "embed_tokens.weight", 0, false);
  const std::string head = WeightName(entry.weights, "lm_head.weight", 0, false);
  const TensorSource& tensors = *source->tensors;
  if (!source->config.tie_word_embeddings || tensors.Find(embed) != nullptr || tensors.Find(head) == nullptr) return;
  source->tensors = std::make_shared<RenamedSource>(std::move(source->tensors), head, embed);
}

Result<const ModelEntry*> EntryOf(const ConfigReader& r) {
  const json* list = r.Find("architectures");
  const json* first = list != nullptr && list->is_array() && !list->empty() ? &(*list)[0] : nullptr;
  if (first == nullptr || !first->is_string()) {
    return Status::InvalidArgument(r.where() +
                                   ": architectures is missing; must be a list that begins with a class name");
  }
  const ModelEntry* entry = BuiltinModels().FindArchitecture(first->get<std::string>());
  if (entry != nullptr) return entry;
  return Status::Unimplemented("architecture \"" + first->get<std::string>() +
                               "\" is not known; known: " + BuiltinModels().Architectures());
}

// generation_config.json of the folder that `option` names, else of the model's; none need be there.
Status ReadGeneration(const fs::path& folder, const std::string& option, ModelSource* source) {
  const bool own = option == "auto" || option == "vllm";
  const fs::path path = (own ? folder : fs::path(option)) / "generation_config.json";
  std::error_code error;
  if (!fs::exists(path, error)) {
    if (own) return Status::Ok();
    return Status::NotFound("generation_config must be auto, vllm or a folder with a generation_config.json, got '" +
                            option + "'");
  }
  FASTLLM_ASSIGN_OR_RETURN(const json generation, ReadJson(path));
  const ConfigReader g(generation, "generation_config.json");
  AddTokenIds(g, "eos_token_id", source->config.vocab_size, &source->config.eos_token_ids);
  if (option != "vllm") ReadHfSampling(g, &source->sampling);
  return g.status();
}

Result<ModelConfig> ParseFolderConfig(const fs::path& folder, const ModelEntry** entry, LinearMethod* linear) {
  FASTLLM_ASSIGN_OR_RETURN(const json root, ReadJson(folder / "config.json"));
  const ConfigReader r(root, "config.json");
  FASTLLM_ASSIGN_OR_RETURN(*entry, EntryOf(r));
  *linear = ReadHfQuantization(r);
  ModelConfig config;
  config.architecture = (*entry)->architecture;
  (*entry)->parse_hf(r, &config);
  FASTLLM_RETURN_IF_ERROR(r.status());
  AddTokenIds(r, "eos_token_id", config.vocab_size, &config.eos_token_ids);
  FASTLLM_RETURN_IF_ERROR(r.status());
  return config;
}

Result<ModelSource> OpenFolder(const fs::path& folder, bool dummy, const std::string& generation_config) {
  if (!fs::exists(folder / "config.json")) {
    return Status::NotFound(folder.string() +
                            " holds no config.json; a model is a .gguf file or a Hugging Face folder");
  }
  ModelSource source;
  const ModelEntry* entry = nullptr;
  FASTLLM_ASSIGN_OR_RETURN(source.config, ParseFolderConfig(folder, &entry, &source.linear));
  FASTLLM_RETURN_IF_ERROR(ReadGeneration(folder, generation_config, &source));
  if (dummy) return source;
  FASTLLM_ASSIGN_OR_RETURN(source.tensors, SafetensorsSource::Open(folder.string()));
  NameTiedEmbedding(*entry, &source);
  FASTLLM_RETURN_IF_ERROR(ResolveTie(*entry, *source.tensors, &source.config));
  return source;
}

// Metadata scalars as a JSON object, so that both formats share one reader. Arrays (token lists) come as their type:
// no architecture here reads one, and a scalar key that is an array is then named in the message.
json MetadataJson(const GgufMetadata& metadata) {
  json out = json::object();
  for (const auto& [key, value] : metadata) {
    out[key] = std::visit(
        [](const auto& v) -> json {
          if constexpr (requires { v.begin(); } && !std::is_same_v<std::decay_t<decltype(v)>, std::string>) {
            return "an array of " + std::to_string(v.size());
          } else {
            return v;
          }
        },
        value);
  }
  return out;
}

Result<ModelSource> OpenGguf(const std::string& path, const std::string& generation_config) {
  FASTLLM_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  const json metadata = MetadataJson(file->metadata());
  const ConfigReader r(metadata, "GGUF metadata");
  const std::string arch = r.String("general.architecture");
  FASTLLM_RETURN_IF_ERROR(r.status());
  const ModelEntry* entry = BuiltinModels().FindGgufArch(arch);
  if (entry == nullptr) {
    return Status::Unimplemented("GGUF architecture \"" + arch +
                                 "\" is not known; known: " + BuiltinModels().GgufArchs());
  }
  ModelSource source;
  ModelConfig& config = source.config;
  config.architecture = entry->architecture;
  entry->parse_gguf(r, *file, &config);
  FASTLLM_RETURN_IF_ERROR(r.status());
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    AddTokenIds(r, key, config.vocab_size, &config.eos_token_ids);
  }
  if (generation_config == "auto") {
    ReadGgufSampling(r, &source.sampling);
  } else if (generation_config != "vllm") {
    FASTLLM_RETURN_IF_ERROR(ReadGeneration({}, generation_config, &source));
  }
  FASTLLM_RETURN_IF_ERROR(r.status());
  FASTLLM_RETURN_IF_ERROR(ResolveTie(*entry, *file, &config));
  source.gguf = file.get();
  source.tensors = std::move(file);
  return source;
}

}  // namespace

Result<LinearMethod> ChooseLinearMethod(const std::optional<std::string>& quantization, const ModelSource& source) {
  if (!quantization || *quantization == source.linear.stored) return source.linear;
  const auto refuse = [&](const std::string& why) {
    return Status::InvalidArgument("quantization is \"" + *quantization + "\"; " + why);
  };
  if (*quantization != "int8" && *quantization != "fp8" && *quantization != "compressed-tensors") {
    return refuse("known: int8, fp8, compressed-tensors");
  }
  if (!source.linear.stored.empty()) return refuse("the checkpoint states \"" + source.linear.stored + "\"");
  if (*quantization == "int8") return source.linear;  // WeightTarget::quantize_int8
  if (*quantization != "fp8") return refuse("the checkpoint has no quantization_config that says so");
  if (source.config.gguf_names) return refuse("of a GGUF file the stored types count");
  return LinearMethod{LinearKind::kFp8, ""};
}

Result<ModelSource> OpenModel(const std::string& path, const std::string& load_format,
                              const std::string& generation_config) {
  if (load_format != "auto" && load_format != "gguf" && load_format != "safetensors" && load_format != "dummy") {
    return Status::InvalidArgument("load_format is \"" + load_format + "\"; must be auto, gguf, safetensors or dummy");
  }
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return Status::NotFound("model \"" + path + "\" does not exist; a model is a .gguf file or a Hugging Face folder");
  }
  const bool folder = fs::is_directory(status);
  if (!folder && load_format != "auto" && load_format != "gguf") {
    return Status::InvalidArgument("load_format " + load_format + " needs a folder with config.json; " + path +
                                   " is a file");
  }
  if (folder && load_format == "gguf") {
    return Status::InvalidArgument("load_format gguf needs a .gguf file; " + path + " is a folder");
  }
  return folder ? OpenFolder(path, load_format == "dummy", generation_config) : OpenGguf(path, generation_config);
}

}  // namespace fastllm::runtime
