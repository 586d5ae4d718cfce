// Metadata of GGUF files, for the Python tokenizer.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <variant>

#include "bindings/bind.h"
#include "bindings/errors.h"
#include "runtime/weights/gguf.h"

namespace py = pybind11;

namespace fastllm::bindings {
namespace {

// Strings of a damaged vocabulary need not be UTF-8; their bad bytes come as lone surrogates, as os.fsdecode does.
py::object TextOf(const std::string& s) {
  PyObject* text = PyUnicode_DecodeUTF8(s.data(), static_cast<Py_ssize_t>(s.size()), "surrogateescape");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(text);
}

py::object ValueOf(const runtime::GgufValue& value) {
  return std::visit(
      [](const auto& v) -> py::object {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return TextOf(v);
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          py::list out(v.size());
          for (size_t i = 0; i < v.size(); ++i) out[i] = TextOf(v[i]);
          return out;
        } else {
          return py::cast(v);
        }
      },
      value);
}

py::dict GgufMetadataDict(const std::string& path, const std::string& prefix) {
  auto file = [&] {
    py::gil_scoped_release release;
    return ValueOrThrow(runtime::GgufFile::Open(path));
  }();
  py::dict out;
  for (const auto& [key, value] : file->metadata()) {
    if (key.starts_with(prefix)) out[TextOf(key)] = ValueOf(value);
  }
  return out;
}

}  // namespace

void BindGguf(py::module_& m) {
  m.def("gguf_metadata", &GgufMetadataDict, py::arg("path"), py::arg("prefix") = "",
        "Metadata of a GGUF file as a dict; only keys that start with `prefix`.");
}

}  // namespace fastllm::bindings
