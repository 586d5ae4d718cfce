#include "runtime/runner/make_runner.h"

#include <utility>

#include "runtime/runner/device_runner.h"
#include "runtime/runner/model_runner.h"

namespace fastllm::runtime {

Result<std::unique_ptr<StepRunner>> MakeStepRunner(ModelSource source, const RunnerOptions& options,
                                                   PhaseSeconds* phases, bool device_runner) {
  if (device_runner || options.placement.device != ops::Device::kCpu) {
    FASTLLM_ASSIGN_OR_RETURN(auto runner, DeviceRunner::Create(std::move(source), options, phases));
    return std::unique_ptr<StepRunner>(std::move(runner));
  }
  FASTLLM_ASSIGN_OR_RETURN(auto runner, ModelRunner::Create(std::move(source), options, phases));
  return std::unique_ptr<StepRunner>(std::move(runner));
}

}  // namespace fastllm::runtime
