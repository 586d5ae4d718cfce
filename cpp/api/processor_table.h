// ProcessorTable: the logits processors of an engine, and which of them a request is for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fastllm/logits_processor.h"
#include "fastllm/sampling_params.h"
#include "fastllm/status.h"

namespace fastllm::api {

// Immutable, so any thread may ask.
class ProcessorTable {
 public:
  explicit ProcessorTable(std::vector<std::shared_ptr<LogitsProcessor>> processors);

  // The processors that take part in a request, by number. kInvalidArgument for extra_args that are no JSON object or
  // hold a key that no processor knows, and for what a processor refuses.
  Result<std::vector<int32_t>> Choose(const SamplingParams& params) const;

 private:
  Status CheckKeys(const std::vector<std::string>& keys) const;

  std::vector<std::shared_ptr<LogitsProcessor>> processors_;
  std::vector<std::vector<std::string>> arg_names_;  // by processor; none: it takes part in every request
};

}  // namespace fastllm::api
