#include "runtime/comm/c10d_communicator.h"

#include <dlfcn.h>

#include <string>
#include <utility>

#include "runtime/comm/c10d_module.h"

namespace fastllm::runtime {
namespace {

// Where the caller's library says that its libraries are; loaded once, and never unloaded: communicators live in it.
Result<const C10dModule*> LoadModule() {
  void* const library = dlopen(kC10dModuleFile, RTLD_NOW | RTLD_LOCAL);
  void* const entry = library == nullptr ? nullptr : dlsym(library, kC10dModuleEntry);
  if (entry == nullptr) {
    const char* const why = dlerror();
    return Status::Unimplemented(std::string("groups of ranks across nodes need ") + kC10dModuleFile +
                                 ", which cannot be loaded: " + (why == nullptr ? "unknown reason" : why));
  }
  const C10dModule* const module = reinterpret_cast<const C10dModule* (*)()>(entry)();
  if (module->version != std::string_view(FASTLLM_VERSION)) {
    return Status::FailedPrecondition(std::string(kC10dModuleFile) + " is of version " + module->version +
                                      "; this is " FASTLLM_VERSION);
  }
  return module;
}

Result<const C10dModule*> Module() {
  static const Result<const C10dModule*> module = LoadModule();
  return module;
}

}  // namespace

Result<std::shared_ptr<Communicator>> MakeC10dCommunicator(const std::string& name, std::vector<std::string> names) {
  FASTLLM_ASSIGN_OR_RETURN(const C10dModule* module, Module());
  return module->make_communicator(name, std::move(names));
}

Result<std::unique_ptr<GroupStore>> ServeGroupStore(std::chrono::milliseconds timeout) {
  FASTLLM_ASSIGN_OR_RETURN(const C10dModule* module, Module());
  return module->serve_store(timeout);
}

}  // namespace fastllm::runtime
