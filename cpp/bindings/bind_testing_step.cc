// StepPlan, StepResult and their codec, for pytest.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/errors.h"
#include "core/step/codec.h"
#include "core/step/step_plan.h"
#include "core/step/step_result.h"

namespace py = pybind11;

namespace fastllm::bindings {
namespace {

void BindSampling(py::module_& m) {
  py::class_<LogitsSpec>(m, "LogitsSpec")
      .def(py::init<>())
      .def_readwrite("repetition_penalty", &LogitsSpec::repetition_penalty)
      .def_readwrite("frequency_penalty", &LogitsSpec::frequency_penalty)
      .def_readwrite("presence_penalty", &LogitsSpec::presence_penalty)
      .def_readwrite("allowed", &LogitsSpec::allowed)
      .def_readwrite("bad_words", &LogitsSpec::bad_words)
      .def_readwrite("dry_multiplier", &LogitsSpec::dry_multiplier)
      .def_readwrite("dry_base", &LogitsSpec::dry_base)
      .def_readwrite("dry_allowed_length", &LogitsSpec::dry_allowed_length)
      .def_readwrite("dry_range", &LogitsSpec::dry_range)
      .def_readwrite("dry_breakers", &LogitsSpec::dry_breakers)
      .def_property_readonly("logit_bias", [](const LogitsSpec& s) {
        py::dict biases;
        for (const LogitBias& b : s.logit_bias) biases[py::int_(b.id)] = b.bias;
        return biases;
      });
  py::class_<LogprobsSpec>(m, "LogprobsSpec")
      .def(py::init<>())
      .def_readwrite("num_top", &LogprobsSpec::num_top)
      .def_readwrite("ids", &LogprobsSpec::ids);
  py::class_<SamplingSpec>(m, "SamplingSpec")
      .def(py::init<>())
      .def_readwrite("temperature", &SamplingSpec::temperature)
      .def_readwrite("top_p", &SamplingSpec::top_p)
      .def_readwrite("top_k", &SamplingSpec::top_k)
      .def_readwrite("min_p", &SamplingSpec::min_p)
      .def_readwrite("seed", &SamplingSpec::seed)
      .def_readwrite("min_tokens", &SamplingSpec::min_tokens)
      .def_readwrite("banned_until_min", &SamplingSpec::banned_until_min)
      .def_readwrite("typical_p", &SamplingSpec::typical_p)
      .def_readwrite("top_n_sigma", &SamplingSpec::top_n_sigma)
      .def_readwrite("xtc_probability", &SamplingSpec::xtc_probability)
      .def_readwrite("xtc_threshold", &SamplingSpec::xtc_threshold)
      .def_readwrite("logits", &SamplingSpec::logits)
      .def_readwrite("logprobs", &SamplingSpec::logprobs)
      .def_readwrite("prompt_logprobs", &SamplingSpec::prompt_logprobs);
}

void BindPlan(py::module_& m) {
  py::class_<NewSequence>(m, "NewSequence")
      .def(py::init<>())
      .def_readwrite("id", &NewSequence::id)
      .def_readwrite("tokens", &NewSequence::tokens)
      .def_readwrite("num_prompt_tokens", &NewSequence::num_prompt_tokens)
      .def_readwrite("num_computed_tokens", &NewSequence::num_computed_tokens)
      .def_readwrite("sampling", &NewSequence::sampling)
      .def_readwrite("block_ids", &NewSequence::block_ids)
      .def_readwrite("repeats_last", &NewSequence::repeats_last);
  py::class_<SequenceDiff>(m, "SequenceDiff")
      .def(py::init<>())
      .def_readwrite("id", &SequenceDiff::id)
      .def_readwrite("num_computed_tokens", &SequenceDiff::num_computed_tokens)
      .def_readwrite("new_block_ids", &SequenceDiff::new_block_ids);
  py::class_<ScheduledRow>(m, "ScheduledRow")
      .def(py::init<>())
      .def_readwrite("id", &ScheduledRow::id)
      .def_readwrite("num_tokens", &ScheduledRow::num_tokens)
      .def_readwrite("sample", &ScheduledRow::sample);
  py::class_<StepPlan>(m, "StepPlan")
      .def(py::init<>())
      .def_readwrite("step_id", &StepPlan::step_id)
      .def_readwrite("removed", &StepPlan::removed)
      .def_readwrite("added", &StepPlan::added)
      .def_readwrite("diffs", &StepPlan::diffs)
      .def_readwrite("rows", &StepPlan::rows)
      .def_readwrite("total_tokens", &StepPlan::total_tokens);
}

void BindResult(py::module_& m) {
  py::class_<SampledRow>(m, "SampledRow")
      .def(py::init([](RequestId id, std::vector<TokenId> tokens) { return SampledRow{id, std::move(tokens)}; }),
           py::arg("id") = 0, py::arg("tokens") = std::vector<TokenId>{})
      .def_readwrite("id", &SampledRow::id)
      .def_readwrite("tokens", &SampledRow::tokens);
  py::class_<StepResult>(m, "StepResult")
      .def(py::init<>())
      .def_readwrite("step_id", &StepResult::step_id)
      .def_readwrite("rows", &StepResult::rows)
      .def_property(
          "error", [](const StepResult& r) { return r.status.message(); },
          [](StepResult& r, const std::string& message) { r.status = Status::Internal(message); },
          "Message of the status; setting it makes the status an internal error.");
}

}  // namespace

void BindTestingStep(py::module_& m) {
  BindSampling(m);
  BindPlan(m);
  BindResult(m);
  m.def("encode_step_plan", [](const StepPlan& plan) { return py::bytes(EncodeStepPlan(plan)); });
  m.def("decode_step_plan", [](const std::string& bytes) { return ValueOrThrow(DecodeStepPlan(bytes)); });
  m.def("encode_step_result", [](const StepResult& result) { return py::bytes(EncodeStepResult(result)); });
  m.def("decode_step_result", [](const std::string& bytes) { return ValueOrThrow(DecodeStepResult(bytes)); });
}

}  // namespace fastllm::bindings
