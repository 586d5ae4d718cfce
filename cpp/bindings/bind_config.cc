// SamplingParams and EngineConfig, made from their field lists.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "bindings/bind.h"
#include "bindings/errors.h"
#include "bindings/field_value.h"
#include "core/config/field_access.h"
#include "fastllm/config.h"
#include "fastllm/sampling_params.h"

namespace py = pybind11;

namespace fastllm::bindings {
namespace {

template <typename S>
void SetFromPython(S& s, const std::string& name, py::handle object) {
  Status status = SetField(s, name, FromPython(name, FieldType<S>(name), object));
  if (status.code() == StatusCode::kNotFound) throw UnknownOptionError(status.message());
  ThrowIfError(std::move(status));
}

// output_kind is vLLM's enum.
py::object ValueOfField(const std::string& name, const FieldValue& field) {
  py::object value = ToPython(field);
  if (name != "output_kind") return value;
  return py::module_::import("fastllm_core.outputs").attr("RequestOutputKind")[value.attr("upper")()];
}

template <typename S>
py::object GetToPython(const S& s, const std::string& name) {
  return ValueOfField(name, ValueOrThrow(GetField(s, name)));
}

template <typename S>
bool HasField(const std::string& name) {
  static const S fresh{};
  return GetField(fresh, name).ok();
}

// Keywords of vLLM that are no field of ours may state what is the case anyway; fastllm_core/vllm_keywords.py knows
// them and raises for the others. Only SamplingParams takes part: EngineConfig holds our own names alone.
template <typename S>
bool StatesTheObvious(const std::string& name, py::handle value) {
  if constexpr (std::is_same_v<S, SamplingParams>) {
    return !HasField<S>(name) && py::module_::import("fastllm_core.vllm_keywords")
                                     .attr("check_sampling_keyword")(name, value)
                                     .template cast<bool>();
  } else {
    return false;
  }
}

template <typename S>
S FromKeywords(const py::kwargs& keywords) {
  S s;
  for (auto [key, value] : keywords) {
    const std::string name = py::str(key);
    if (!StatesTheObvious<S>(name, value)) SetFromPython(s, name, value);
  }
  return s;
}

template <typename S>
py::dict ToDict(const S& s) {
  py::dict out;
  for (const FieldDescription& f : ListFields<S>()) out[py::str(f.name)] = GetToPython(s, f.name);
  return out;
}

template <typename S>
std::string Repr(const S& s, const char* class_name) {
  std::string out = std::string(class_name) + "(";
  bool first = true;
  for (const FieldDescription& f : ListFields<S>()) {
    const FieldValue value = ValueOrThrow(GetField(s, f.name));
    if (value == f.default_value) continue;
    if (!first) out += ", ";
    first = false;
    const bool secret = f.name == "distributed_token";  // what is shown ends in logs
    out += f.name + "=" + (secret ? "'***'" : py::repr(ToPython(value)).cast<std::string>());
  }
  return out + ")";
}

template <typename S>
std::string DocString(const char* summary) {
  std::string doc = std::string(summary) + "\n\nKeywords:\n";
  for (const FieldDescription& f : ListFields<S>()) {
    doc += "  " + f.name + ": " + f.type + (f.optional ? " or None" : "") + " = " + FormatFieldValue(f.default_value) +
           "\n      " + f.help + "\n";
  }
  return doc;
}

template <typename S>
void BindFieldStruct(py::module_& m, const char* name, const char* summary) {
  static const std::string doc = DocString<S>(summary);
  py::class_<S> cls(m, name, doc.c_str());
  cls.def(py::init(&FromKeywords<S>));
  for (const FieldDescription& f : ListFields<S>()) {
    cls.def_property(f.name.c_str(), py::cpp_function([field = f.name](const S& s) { return GetToPython(s, field); }),
                     py::cpp_function([field = f.name](S& s, py::handle value) { SetFromPython(s, field, value); }),
                     py::doc(f.help.c_str()));
  }
  cls.def_static("fields", &ListFields<S>, "Every field: type, default, limits and help.");
  cls.def("to_dict", &ToDict<S>, "All fields and their values.");
  cls.def_static("from_dict", [](const py::dict& d) { return FromKeywords<S>(py::kwargs(d)); });
  cls.def("clone", [](const S& s) { return s; });
  cls.def("__copy__", [](const S& s) { return s; });
  cls.def("__deepcopy__", [](const S& s, const py::dict&) { return s; });
  cls.def("__repr__", [name](const S& s) { return Repr(s, name); });
  cls.def("__eq__", [](const S& a, py::handle b) -> py::object {
    if (!py::isinstance<S>(b)) return py::reinterpret_borrow<py::object>(Py_NotImplemented);
    return py::bool_(ToDict(a).equal(ToDict(b.cast<const S&>())));
  });
  cls.attr("__hash__") = py::none();  // values can change
  cls.def(py::pickle(&ToDict<S>, [](const py::dict& d) { return FromKeywords<S>(py::kwargs(d)); }));
}

// "unknown option 'temprature'; did you mean 'temperature'?"
std::string UnknownMessage(const std::string& name, const std::vector<std::string>& known) {
  return fastllm::UnknownOption(name, known).message();
}

}  // namespace

void BindConfig(py::module_& m) {
  py::class_<FieldDescription>(m, "FieldDescription", "One option: its name, type, default, limits and help.")
      .def_readonly("name", &FieldDescription::name)
      .def_readonly("type", &FieldDescription::type)
      .def_readonly("optional", &FieldDescription::optional)
      .def_property_readonly("default", [](const FieldDescription& f) { return ValueOfField(f.name, f.default_value); })
      .def_readonly("help", &FieldDescription::help)
      .def_readonly("room", &FieldDescription::room)
      .def_readonly("choices", &FieldDescription::choices)
      .def_readonly("lo", &FieldDescription::lo)
      .def_readonly("hi", &FieldDescription::hi)
      .def_readonly("lo_open", &FieldDescription::lo_open)
      .def(
          "parse",
          [](const FieldDescription& f, const std::string& text) {
            return ToPython(ValueOrThrow(ParseFieldText(f, text)));
          },
          "The value that a command-line word stands for.")
      .def("format_default", [](const FieldDescription& f) { return FormatFieldValue(f.default_value); });
  BindFieldStruct<SamplingParams>(m, "SamplingParams", "How one request turns logits into tokens and when it stops.");
  BindFieldStruct<EngineConfig>(m, "EngineConfig", "Everything that may be set when an engine is made.");
  m.def("unknown_option_message", &UnknownMessage, py::arg("name"), py::arg("known"),
        "What to say about an option that does not exist: the nearest known one, or all of them.");
}

}  // namespace fastllm::bindings
