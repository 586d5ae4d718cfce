#include "runtime/models/base/registry.h"

namespace fastllm::runtime {

const ModelEntry* ModelRegistry::FindArchitecture(std::string_view architecture) const {
  for (const ModelEntry& e : entries_) {
    if (e.architecture == architecture) return &e;
  }
  return nullptr;
}

const ModelEntry* ModelRegistry::FindGgufArch(std::string_view arch) const {
  for (const ModelEntry& e : entries_) {
    if (!e.gguf_arch.empty() && e.gguf_arch == arch) return &e;
  }
  return nullptr;
}

std::string ModelRegistry::Architectures() const {
  std::string s;
  for (const ModelEntry& e : entries_) s += (s.empty() ? "" : ", ") + std::string(e.architecture);
  return s;
}

std::string ModelRegistry::GgufArchs() const {
  std::string s;
  for (const ModelEntry& e : entries_) {
    if (!e.gguf_arch.empty()) s += (s.empty() ? "" : ", ") + std::string(e.gguf_arch);
  }
  return s;
}

const ModelRegistry& BuiltinModels() {
  static const ModelRegistry registry = [] {
    ModelRegistry r;
    RegisterModels(r);
    return r;
  }();
  return registry;
}

}  // namespace fastllm::runtime
