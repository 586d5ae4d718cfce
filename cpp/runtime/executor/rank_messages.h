// What the driver and the processes of ranks say to each other, as bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/step/step_plan.h"
#include "core/step/step_result.h"
#include "fastllm/status.h"
#include "runtime/runner/runner_options.h"
#include "runtime/runner/step_runner.h"

namespace fastllm::runtime {

// From the driver to all ranks.
struct RankOrder {
  enum class Kind : uint8_t { kStep = 1, kEnd = 2 };
  Kind kind = Kind::kEnd;
  std::vector<SampledId> learned;  // by the stages that do not sample, before the plan
  StepPlan plan;
};
std::string EncodeOrder(const std::vector<SampledId>& learned, const StepPlan& plan);
std::string EncodeEnd();
Result<RankOrder> DecodeOrder(std::string_view bytes);

// From a rank to the driver: one when it is loaded, one for each plan; an error in any of them is its last.
struct RankReport {
  enum class Kind : uint8_t { kLoaded = 1, kStep = 2 };
  Kind kind = Kind::kLoaded;
  StepResult result;    // of kLoaded: the status alone
  PhaseSeconds phases;  // of kLoaded
};
std::string EncodeReport(const RankReport& report);
// kDataLoss for what is none.
Result<RankReport> DecodeReport(std::string_view bytes);

}  // namespace fastllm::runtime
