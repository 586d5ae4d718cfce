// The runner for a placement.
#pragma once

#include <memory>

#include "runtime/runner/runner_options.h"
#include "runtime/runner/step_runner.h"

namespace fastllm::runtime {

// ModelRunner for the CPU, DeviceRunner for the others, or for any with `device_runner`.
Result<std::unique_ptr<StepRunner>> MakeStepRunner(ModelSource source, const RunnerOptions& options,
                                                   PhaseSeconds* phases, bool device_runner = false);

}  // namespace fastllm::runtime
