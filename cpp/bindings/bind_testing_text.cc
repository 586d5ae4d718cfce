// Detokenizer, stop strings and text streams, for pytest.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <vector>

#include "bindings/bind.h"
#include "bindings/errors.h"
#include "core/text/detokenizer.h"
#include "core/text/stop_matcher.h"
#include "core/text/text_stream.h"
#include "core/text/utf8_decoder.h"

namespace py = pybind11;

namespace fastllm::bindings {
namespace {

FinishReason ReasonFromName(const std::string& name) {
  for (FinishReason reason :
       {FinishReason::kNone, FinishReason::kStop, FinishReason::kLength, FinishReason::kAbort, FinishReason::kError}) {
    if (name == FinishReasonName(reason)) return reason;
  }
  throw StatusError(Status::InvalidArgument("finish_reason: unknown value '" + name + "'"));
}

void BindStream(py::module_& m) {
  py::class_<TextUpdate>(m, "TextUpdate")
      .def_readonly("text", &TextUpdate::text)
      .def_readonly("num_tokens", &TextUpdate::num_tokens)
      .def_readonly("text_offsets", &TextUpdate::text_offsets)
      .def_readonly("stop_string", &TextUpdate::stop_string);
  py::class_<TextStream>(m, "TextStream")
      .def(py::init([](const std::shared_ptr<TokenTable>& table, const std::vector<TokenId>& prompt,
                       const SamplingParams& sampling) {
             Request request;
             request.prompt = prompt;
             request.sampling = sampling;
             return TextStream(table, request);
           }),
           py::arg("table").none(false), py::arg("prompt"), py::arg("sampling"))
      .def(
          "append",
          [](TextStream& s, const std::vector<TokenId>& tokens, const std::string& finish_reason) {
            return s.Append(tokens, ReasonFromName(finish_reason));
          },
          py::arg("tokens"), py::arg("finish_reason") = "");
}

}  // namespace

void BindTestingText(py::module_& m) {
  py::class_<Detokenizer>(m, "Detokenizer")
      .def(py::init([](const std::shared_ptr<TokenTable>& table, const std::vector<TokenId>& prompt, bool skip,
                       bool spaces) { return Detokenizer(table, prompt, {skip, spaces}); }),
           py::arg("table").none(false), py::arg("prompt") = std::vector<TokenId>{},
           py::arg("skip_special_tokens") = true, py::arg("spaces_between_special_tokens") = true)
      .def("append",
           [](Detokenizer& d, TokenId token) {
             std::string out;
             d.Append(token, &out);
             return out;
           })
      .def("flush", [](Detokenizer& d) {
        std::string out;
        d.Flush(&out);
        return out;
      });
  py::class_<StopMatcher>(m, "StopMatcher")
      .def(py::init<std::vector<std::string>>(), py::arg("stops"))
      .def(
          "feed",
          [](StopMatcher& s, const std::string& text, size_t armed_from) -> py::object {
            auto match = s.Feed(text, armed_from);
            if (!match) return py::none();
            return py::make_tuple(match->stop, match->end);
          },
          py::arg("text"), py::arg("armed_from") = 0, "(index of the stop string, byte offset past it), or None.");
  BindStream(m);
}

}  // namespace fastllm::bindings
