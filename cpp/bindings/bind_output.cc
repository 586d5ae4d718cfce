// RequestDelta.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "fastllm/output.h"

namespace py = pybind11;

namespace fastllm::bindings {
namespace {

// [[(token id, logprob, rank or None), ...], ...]
py::list LogprobsToPython(const std::vector<PositionLogprobs>& positions) {
  py::list out(positions.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    py::list entries(positions[i].size());
    for (size_t j = 0; j < positions[i].size(); ++j) {
      const TokenLogprob& e = positions[i][j];
      entries[j] = py::make_tuple(e.token_id, e.logprob, e.rank > 0 ? py::object(py::int_(e.rank)) : py::none());
    }
    out[i] = std::move(entries);
  }
  return out;
}

py::object FinishName(const RequestDelta& d) {
  if (d.finish_reason == FinishReason::kNone) return py::none();
  return py::str(FinishReasonName(d.finish_reason));
}

py::object StopCause(const RequestDelta& d) {
  if (const auto* id = std::get_if<int32_t>(&d.stop_reason)) return py::int_(*id);
  if (const auto* text = std::get_if<std::string>(&d.stop_reason)) return py::str(*text);
  return py::none();
}

// In the order of Piece's fields.
py::tuple DeltaFields(const RequestDelta& d) {
  return py::make_tuple(d.token_ids, d.text, FinishName(d), StopCause(d), d.error, d.num_cached_tokens, d.metrics,
                        StatusCodeName(d.error_code), d.index, LogprobsToPython(d.logprobs),
                        LogprobsToPython(d.prompt_logprobs), d.text_offsets);
}

}  // namespace

void BindOutput(py::module_& m) {
  py::class_<RequestMetrics>(
      m, "RequestMetrics",
      "Times of one finished request in seconds, under vLLM's names. Stamps ending in _ts are on "
      "the steady clock (time.monotonic); what was never reached is 0.")
      .def_readonly("arrival_time", &RequestMetrics::arrival_time, "Seconds since the Unix epoch.")
      .def_readonly("queued_ts", &RequestMetrics::queued_ts)
      .def_readonly("scheduled_ts", &RequestMetrics::scheduled_ts)
      .def_readonly("first_token_ts", &RequestMetrics::first_token_ts)
      .def_readonly("last_token_ts", &RequestMetrics::last_token_ts)
      .def_readonly("first_token_latency", &RequestMetrics::first_token_latency, "Arrival to first token.")
      .def_readonly("queued_time", &RequestMetrics::queued_time)
      .def_readonly("prefill_time", &RequestMetrics::prefill_time)
      .def_readonly("decode_time", &RequestMetrics::decode_time)
      .def_readonly("inference_time", &RequestMetrics::inference_time)
      .def_readonly("e2e_latency", &RequestMetrics::e2e_latency)
      .def_readonly("mean_time_per_output_token", &RequestMetrics::mean_time_per_output_token)
      .def_readonly("min_inter_token_latency", &RequestMetrics::min_inter_token_latency)
      .def_readonly("max_inter_token_latency", &RequestMetrics::max_inter_token_latency)
      .def_readonly("num_generation_tokens", &RequestMetrics::num_generation_tokens)
      .def_readonly("num_preemptions", &RequestMetrics::num_preemptions);
  py::class_<RequestDelta>(m, "RequestDelta",
                           "News of one request since the last delta; the one with a finish_reason is the last.")
      .def("fields", &DeltaFields,
           "What a Piece (fastllm_core/outputs.py) is made of, in its order: one call in place of one per field.")
      .def_readonly("request_id", &RequestDelta::request_id)
      .def_readonly("index", &RequestDelta::index, "Of the output, below SamplingParams.n; each has its own deltas.")
      .def_readonly("token_ids", &RequestDelta::token_ids)
      .def_readonly("text", &RequestDelta::text)
      .def_readonly("text_offsets", &RequestDelta::text_offsets,
                    "By token: the characters of the output's text in front of it; empty without text.")
      .def_property_readonly("finish_reason", &FinishName,
                             "'stop', 'length', 'abort', 'error', or None while the request runs.")
      .def_property_readonly("stop_reason", &StopCause,
                             "The stop token id or stop string that matched; None for the end of sequence.")
      .def_property_readonly(
          "logprobs", [](const RequestDelta& d) { return LogprobsToPython(d.logprobs); },
          "For each new token, if asked for: (id, logprob, rank) of the token, of the likeliest, of those asked for.")
      .def_property_readonly(
          "prompt_logprobs", [](const RequestDelta& d) { return LogprobsToPython(d.prompt_logprobs); },
          "The same for each prompt token, in the first delta; the first token's is empty.")
      .def_readonly("error", &RequestDelta::error)
      .def_property_readonly(
          "error_code", [](const RequestDelta& d) { return StatusCodeName(d.error_code); },
          "Of which kind the error is: 'deadline_exceeded', 'resource_exhausted' (its queue-time limit), "
          "'unavailable', "
          "'internal'; 'ok' without one.")
      .def_readonly("num_prompt_tokens", &RequestDelta::num_prompt_tokens)
      .def_readonly("num_cached_tokens", &RequestDelta::num_cached_tokens)
      .def_readonly("metrics", &RequestDelta::metrics, "RequestMetrics of the last delta; None before.");
}

}  // namespace fastllm::bindings
