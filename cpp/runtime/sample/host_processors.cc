#include "runtime/sample/host_processors.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <utility>

#include "ops/contract/sampling.h"

namespace fastllm::runtime {

HostProcessors::HostProcessors(std::vector<std::shared_ptr<LogitsProcessor>> processors) {
  processors_.reserve(processors.size());
  for (auto& code : processors) {
    Processor& p = processors_.emplace_back();
    p.invariant = code->IsArgmaxInvariant();
    p.code = std::move(code);
  }
}

void HostProcessors::Clear() {
  for (Processor& p : processors_) {
    p.rows.clear();
    p.inputs.clear();
  }
  errors_.clear();
  has_raw_ = false;
  has_scaled_ = false;
}

void HostProcessors::Add(int32_t row, RequestId id, const SamplingSpec& spec, std::span<const TokenId> prompt,
                         std::span<const TokenId> output) {
  if (!spec.processors) return;
  for (const int32_t which : spec.processors->which) {
    Processor& p = processors_.at(which);
    if (p.invariant && spec.temperature < ops::kGreedyTemperature) continue;
    (p.invariant ? has_scaled_ : has_raw_) = true;
    p.rows.push_back(row);
    ProcessorRow& input = p.inputs.emplace_back();
    input.request_id = id - static_cast<RequestId>(spec.processors->index);
    input.index = spec.processors->index;
    input.params = &spec.processors->params;
    input.prompt_token_ids = prompt;
    input.output_token_ids = output;
  }
}

bool HostProcessors::IsScaled(const SamplingSpec& spec) const {
  if (!spec.processors || spec.temperature < ops::kGreedyTemperature) return false;
  return std::ranges::any_of(spec.processors->which, [this](int32_t which) { return processors_.at(which).invariant; });
}

void HostProcessors::Run(bool scaled, float* x, int64_t stride, int32_t vocab) {
  for (Processor& p : processors_) {
    if (p.invariant != scaled || p.rows.empty()) continue;
    for (size_t i = 0; i < p.rows.size(); ++i) {
      p.inputs[i].logits = {x + static_cast<ptrdiff_t>(p.rows[i] * stride), static_cast<size_t>(vocab)};
    }
    // Whatever the host's code throws ends with the requests that asked for it.
    Status status;
    try {
      status = p.code->Apply(p.inputs);
    } catch (const std::exception& e) {
      status = Status::Internal(e.what());
    } catch (...) {
      status = Status::Internal("an exception of unknown type");
    }
    for (size_t i = 0; i < p.rows.size(); ++i) {
      const Status& row_status = status.ok() ? p.inputs[i].status : status;
      if (!row_status.ok()) Fail(p, p.rows[i], row_status.message());
    }
  }
}

void HostProcessors::Fail(const Processor& processor, int32_t row, std::string_view why) {
  if (std::cmp_less_equal(errors_.size(), row)) errors_.resize(static_cast<size_t>(row) + 1);
  std::string& error = errors_[row];
  if (!error.empty()) return;
  error = processor.code->Name();
  error += " failed: ";
  error += why;
}

const std::string& HostProcessors::error(int32_t row) const {
  static const std::string none;
  return std::cmp_less(row, errors_.size()) ? errors_[row] : none;
}

}  // namespace fastllm::runtime
