// HostProcessors: the logits processors of the host, on the rows of one step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/ids.h"
#include "core/step/step_plan.h"
#include "fastllm/logits_processor.h"

namespace fastllm::runtime {

// Worker thread.
class HostProcessors {
 public:
  explicit HostProcessors(std::vector<std::shared_ptr<LogitsProcessor>> processors = {});

  // Begins a step.
  void Clear();

  // Adds a row of the step: of sequence `id`, whose next token the spec is for. Nothing without spec.processors. The
  // spec and the tokens stay until the last Run().
  void Add(int32_t row, RequestId id, const SamplingSpec& spec, std::span<const TokenId> prompt,
           std::span<const TokenId> output);

  // Whether a processor has rows that sees the logits before all else / behind the temperature.
  bool has_raw() const { return has_raw_; }
  bool has_scaled() const { return has_scaled_; }
  // Whether the row's logits are to be divided by its temperature, for RunScaled().
  bool IsScaled(const SamplingSpec& spec) const;

  // Runs the processors on logits x, `stride` floats from row to row.
  void RunRaw(float* x, int64_t stride, int32_t vocab) { Run(false, x, stride, vocab); }
  void RunScaled(float* x, int64_t stride, int32_t vocab) { Run(true, x, stride, vocab); }

  // Why a row's processor failed; empty: none did.
  const std::string& error(int32_t row) const;

 private:
  struct Processor {
    std::shared_ptr<LogitsProcessor> code;
    bool invariant = false;
    std::vector<int32_t> rows;         // of this step
    std::vector<ProcessorRow> inputs;  // in the order of rows
  };
  void Run(bool scaled, float* x, int64_t stride, int32_t vocab);
  void Fail(const Processor& processor, int32_t row, std::string_view why);

  std::vector<Processor> processors_;
  std::vector<std::string> errors_;  // by row; as long as the last row that failed
  bool has_raw_ = false;
  bool has_scaled_ = false;
};

}  // namespace fastllm::runtime
