#include "api/worker_command.h"

#include <dlfcn.h>
#include <unistd.h>

namespace fastllm::api {

std::vector<std::string> WorkerCommand(const ParallelOptions& options) {
  if (!options.distributed_worker_command.empty()) return options.distributed_worker_command;
  Dl_info here{};
  if (dladdr(reinterpret_cast<void*>(&WorkerCommand), &here) != 0 && here.dli_fname != nullptr) {
    const std::string library = here.dli_fname;
    const size_t slash = library.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : library.substr(0, slash);
    for (const char* place : {"/fastllm_worker", "/../bin/fastllm_worker"}) {
      if (access((folder + place).c_str(), X_OK) == 0) return {folder + place};
    }
  }
  return {"fastllm_worker"};
}

}  // namespace fastllm::api
