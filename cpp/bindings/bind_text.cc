// TokenTable and what Python does with it; StopFilter for text that is made in Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/errors.h"
#include "core/text/detokenizer.h"
#include "core/text/stop_filter.h"
#include "fastllm/token_table.h"

namespace py = pybind11;

namespace fastllm::bindings {
namespace {

template <typename T>
T ValueNamed(const char* what, const std::map<std::string, T>& known, const std::string& name) {
  if (const auto it = known.find(name); it != known.end()) return it->second;
  std::string names;
  for (const auto& [key, value] : known) names.append(names.empty() ? "" : ", ").append(key);
  throw StatusError(Status::InvalidArgument(std::string(what) + " must be one of " + names + ", got '" + name + "'"));
}

std::vector<std::string> BytesColumn(const py::list& pieces) {
  std::vector<std::string> column;
  column.reserve(pieces.size());
  for (py::handle piece : pieces) column.push_back(piece.cast<py::bytes>());
  return column;
}

std::shared_ptr<TokenTable> MakeTable(const py::list& pieces, const std::vector<bool>& special, bool strip,
                                      const py::list& first, const std::string& first_until, const std::string& invalid,
                                      const std::vector<bool>& byte_token, const py::dict& added) {
  auto table = std::make_shared<TokenTable>();
  table->bytes = BytesColumn(pieces);
  table->special.assign(special.begin(), special.end());
  table->strip_leading_space = strip;
  table->first_bytes = BytesColumn(first);
  table->first_bytes_until = ValueNamed<FirstBytesUntil>(
      "first_bytes_until",
      {{"token", FirstBytesUntil::kToken}, {"bytes", FirstBytesUntil::kBytes}, {"visible", FirstBytesUntil::kVisible}},
      first_until);
  table->invalid_bytes = ValueNamed<InvalidBytes>("invalid_bytes",
                                                  {{"replace_part", InvalidBytes::kReplacePart},
                                                   {"replace_each", InvalidBytes::kReplaceEach},
                                                   {"replace_run", InvalidBytes::kReplaceRun}},
                                                  invalid);
  table->byte_token.assign(byte_token.begin(), byte_token.end());
  for (const auto& [id, text] : added) table->added[id.cast<int32_t>()] = text.cast<py::bytes>();
  ThrowIfError(ValidateTokenTable(*table));
  return table;
}

void BindTokenTable(py::module_& m) {
  py::class_<TokenTable, std::shared_ptr<TokenTable>>(
      m, "TokenTable", "What each token id stands for in a text; the columns are explained in fastllm/token_table.h.")
      .def(py::init(&MakeTable), py::arg("bytes"), py::arg("special"), py::arg("strip_leading_space") = false,
           py::arg("first_bytes") = py::list(), py::arg("first_bytes_until") = "token",
           py::arg("invalid_bytes") = "replace_part", py::arg("byte_token") = std::vector<bool>{},
           py::arg("added") = py::dict())
      .def("__len__", [](const TokenTable& t) { return t.bytes.size(); })
      .def(
          "bytes_of", [](const TokenTable& t, size_t id) { return py::bytes(t.bytes.at(id)); }, py::arg("token_id"))
      .def(
          "is_special", [](const TokenTable& t, size_t id) { return t.special.at(id) != 0; }, py::arg("token_id"))
      .def(
          "decode",
          [](const std::shared_ptr<TokenTable>& t, const std::vector<TokenId>& ids, bool skip, bool spaces) {
            return Detokenize(t, ids, {skip, spaces});
          },
          py::arg("token_ids"), py::arg("skip_special_tokens") = true, py::arg("spaces_between_special_tokens") = true,
          "The text of a whole sequence, as the engine makes it.")
      .def(
          "text_offsets",
          [](const std::shared_ptr<TokenTable>& t, const std::vector<TokenId>& ids, bool skip, bool spaces) {
            Detokenizer detokenizer(t, {}, {skip, spaces});
            std::string text;
            std::vector<size_t> offsets;
            offsets.reserve(ids.size());
            for (const TokenId id : ids) offsets.push_back(detokenizer.Append(id, &text));
            return offsets;
          },
          py::arg("token_ids"), py::arg("skip_special_tokens") = true, py::arg("spaces_between_special_tokens") = true,
          "By token: where its text begins in decode() of the sequence, in characters (RequestDelta.text_offsets).")
      .def_readonly("strip_leading_space", &TokenTable::strip_leading_space);
}

}  // namespace

void BindText(py::module_& m) {
  BindTokenTable(m);
  py::class_<StopFilter>(m, "StopFilter", "Finds stop strings in text, and holds back what could begin one.")
      .def(py::init<std::vector<std::string>, bool>(), py::arg("stop"), py::arg("include_stop_str_in_output"))
      .def("add", &StopFilter::Add, py::arg("text"), py::arg("armed") = true,
           "Takes the next text; the stop string that it completes, or None. A match must end in armed text.")
      .def(
          "take",
          [](StopFilter& f, bool all) {
            std::string text;
            f.Take(all, &text);
            return text;
          },
          py::arg("all"), "The text that may be sent now; with `all`, the rest too.");
}

}  // namespace fastllm::bindings
