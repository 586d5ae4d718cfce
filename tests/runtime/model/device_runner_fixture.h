// A tiny model behind the device's runner, with the CPU as its device, and plans for it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/runner/device_runner.h"
#include "tests/runtime/model/runner_support.h"

namespace fastllm::runtime::testing {

inline RunnerOptions Options(bool eager) {
  RunnerOptions o = TinyOptions();
  o.enforce_eager = eager;
  return o;
}

inline std::unique_ptr<DeviceRunner> Runner(bool eager = false) {
  auto r = DeviceRunner::Create(TinySource(), Options(eager), nullptr);
  EXPECT_TRUE(r.ok()) << r.status().ToString();
  return std::move(r).value();
}

inline StepResult Step(DeviceRunner& runner, const StepPlan& plan) {
  PendingStep step;
  runner.Launch(plan, &step);
  step.Finish();
  return step.result;
}

inline std::vector<TokenId> ReferenceGreedy(std::vector<TokenId> tokens, int32_t steps) {
  const ModelConfig config = TinyConfig();
  const auto weights = TinyWeights(config, 3);
  const ReferenceModel model(config, *weights);
  std::vector<TokenId> out;
  for (int32_t i = 0; i < steps; ++i) {
    const auto last = model.Logits(tokens).back();
    out.push_back(static_cast<TokenId>(std::max_element(last.begin(), last.end()) - last.begin()));
    tokens.push_back(out.back());
  }
  return out;
}

}  // namespace fastllm::runtime::testing
