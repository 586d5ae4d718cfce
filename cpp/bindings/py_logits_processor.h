// PyLogitsProcessor: a logits processor written in Python, in the shape of vLLM V1's.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fastllm/logits_processor.h"

namespace fastllm::bindings {

// The requests that take part are a batch, kept from step to step as vLLM keeps its: each has a place until it leaves,
// a newcomer gets a place that is free, and the last ones move into places that stay empty. Python hears of the changes
// in update_state() and gets the logits in order of the places. The GIL is taken in each call and not held between.
class PyLogitsProcessor : public LogitsProcessor {
 public:
  // With the GIL. `object` has apply(logits), update_state(batch_update), is_argmax_invariant() and, if it wants,
  // validate_params(params), arg_names (an iterable of str) and take_row_errors() ({place: exception}, once per apply).
  explicit PyLogitsProcessor(pybind11::object object);
  ~PyLogitsProcessor() override;

  std::string Name() const override { return name_; }
  std::vector<std::string> ArgNames() const override { return arg_names_; }
  Status ValidateParams(const SamplingParams& params) const override;
  bool IsArgmaxInvariant() const override { return invariant_; }
  Status Apply(std::span<ProcessorRow> rows) override;

 private:
  struct Place {
    uint64_t id = 0;                  // request_id + index
    pybind11::list output_token_ids;  // the list that Python has: it grows here
  };
  // Where each row is in the batch, and what changed since the last step, for update_state().
  void TakeRowErrors(std::span<ProcessorRow> rows, const std::vector<size_t>& places) const;
  pybind11::object UpdateBatch(std::span<const ProcessorRow> rows, std::vector<size_t>* places);

  pybind11::object object_;
  std::string name_;
  std::vector<std::string> arg_names_;
  bool invariant_;
  std::vector<Place> batch_;
};

}  // namespace fastllm::bindings
