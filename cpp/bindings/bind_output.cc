// RequestDelta.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "fastllm/output.h"

namespace py = pybind11;

namespace fastllm::bindings {

void BindOutput(py::module_& m) {
  py::class_<RequestDelta>(m, "RequestDelta",
                           "News of one request since the last delta; the one with a finish_reason is the last.")
      .def_readonly("request_id", &RequestDelta::request_id)
      .def_readonly("token_ids", &RequestDelta::token_ids)
      .def_readonly("text", &RequestDelta::text)
      .def_property_readonly(
          "finish_reason",
          [](const RequestDelta& d) -> py::object {
            if (d.finish_reason == FinishReason::kNone) return py::none();
            return py::str(FinishReasonName(d.finish_reason));
          },
          "'stop', 'length', 'abort', 'error', or None while the request runs.")
      .def_property_readonly(
          "stop_reason",
          [](const RequestDelta& d) -> py::object {
            if (const auto* id = std::get_if<int32_t>(&d.stop_reason)) return py::int_(*id);
            if (const auto* text = std::get_if<std::string>(&d.stop_reason)) return py::str(*text);
            return py::none();
          },
          "The stop token id or stop string that matched; None for the end of sequence.")
      .def_readonly("error", &RequestDelta::error)
      .def_readonly("num_prompt_tokens", &RequestDelta::num_prompt_tokens)
      .def_readonly("num_cached_tokens", &RequestDelta::num_cached_tokens);
}

}  // namespace fastllm::bindings
