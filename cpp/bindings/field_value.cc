#include "bindings/field_value.h"

#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/errors.h"

namespace py = pybind11;

namespace fastllm::bindings {
namespace {

[[noreturn]] void Refuse(std::string_view field, const std::string& why, py::handle object) {
  std::string shown = py::repr(object).cast<std::string>();
  if (shown.size() > 80) shown = shown.substr(0, 77) + "...";
  throw StatusError(Status::InvalidArgument(std::string(field) + ": " + why + ", got " + shown));
}

bool IsInteger(py::handle object) { return PyIndex_Check(object.ptr()) && !PyBool_Check(object.ptr()); }

int64_t ToInteger(std::string_view field, py::handle object) {
  auto index = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
  if (!index) throw py::error_already_set();
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) Refuse(field, "does not fit in 64 bits", object);
  return value;
}

bool IsList(py::handle object) { return PyList_Check(object.ptr()) || PyTuple_Check(object.ptr()); }

FieldValue FromLists(std::string_view field, const py::sequence& lists) {
  std::vector<std::vector<int64_t>> out;
  for (py::handle list : lists) {
    if (!IsList(list)) Refuse(field, "elements must all be of one type", lists);
    std::vector<int64_t>& ids = out.emplace_back();
    for (py::handle item : py::reinterpret_borrow<py::sequence>(list)) {
      if (!IsInteger(item)) Refuse(field, "the elements' elements must be int", item);
      ids.push_back(ToInteger(field, item));
    }
  }
  return out;
}

FieldValue FromBiases(std::string_view field, const py::dict& dict) {
  std::vector<std::pair<int64_t, double>> out;
  for (auto [key, value] : dict) {
    const int64_t id = PyUnicode_Check(key.ptr()) ? ValueOrThrow(ParseTokenKey(field, Utf8Text(field, key)))
                       : IsInteger(key)           ? ToInteger(field, key)
                                                  : (Refuse(field, "keys must be token ids", key), 0);
    if (PyBool_Check(value.ptr()) || !PyNumber_Check(value.ptr())) Refuse(field, "values must be numbers", value);
    const double bias = PyFloat_AsDouble(value.ptr());
    if (bias == -1.0 && PyErr_Occurred()) throw py::error_already_set();
    out.emplace_back(id, bias);
  }
  return out;
}

FieldValue FromJsonObject(std::string_view field, const py::dict& dict) {
  try {
    const py::object text = py::module_::import("json").attr("dumps")(dict, py::arg("allow_nan") = false);
    return JsonText{Utf8Text(field, text)};
  } catch (const py::error_already_set& e) {
    if (!e.matches(PyExc_TypeError) && !e.matches(PyExc_ValueError)) throw;
    Refuse(field, "must be a dict that JSON can hold", dict);
  }
}

py::object LoadJson(const JsonText& json) {
  try {
    py::object value = py::module_::import("json").attr("loads")(json.text);
    if (PyDict_Check(value.ptr())) return value;
  } catch (const py::error_already_set& e) {
    if (!e.matches(PyExc_ValueError)) throw;
  }
  throw StatusError(Status::InvalidArgument("must be a JSON object, got " + FormatFieldValue(json)));
}

FieldValue FromList(std::string_view field, py::handle object) {
  std::vector<int64_t> ids;
  std::vector<std::string> strings;
  auto sequence = py::reinterpret_borrow<py::sequence>(object);
  if (sequence.size() > 0 && IsList(py::object(sequence[0]))) return FromLists(field, sequence);
  for (py::handle item : sequence) {
    if (PyUnicode_Check(item.ptr())) {
      strings.push_back(Utf8Text(field, item));
    } else if (IsInteger(item)) {
      ids.push_back(ToInteger(field, item));
    } else {
      Refuse(field, "elements must be int or str", item);
    }
  }
  if (!strings.empty() && !ids.empty()) Refuse(field, "elements must all be of one type", object);
  if (!strings.empty()) return strings;
  return ids;
}

}  // namespace

std::string Utf8Text(std::string_view field, py::handle text) {
  Py_ssize_t size = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes == nullptr) {
    PyErr_Clear();
    throw StatusError(Status::InvalidArgument(std::string(field) +
                                              " must not hold half of a surrogate pair, which has no UTF-8 form"));
  }
  return std::string(bytes, static_cast<size_t>(size));
}

FieldValue FromPython(std::string_view field, std::string_view type, py::handle object) {
  if (object.is_none()) return std::monostate{};
  if (PyDict_Check(object.ptr())) {
    const auto dict = py::reinterpret_borrow<py::dict>(object);
    if (type == "map[int32,float]") return FromBiases(field, dict);
    if (type == "json") return FromJsonObject(field, dict);
  }
  if (type == "string" && py::hasattr(object, "_name_")) {
    return Utf8Text(field, py::str(object.attr("_name_").attr("lower")()));
  }
  if (PyBool_Check(object.ptr())) return object.ptr() == Py_True;
  if (PyUnicode_Check(object.ptr())) return Utf8Text(field, object);
  if (IsList(object)) return FromList(field, object);
  if (IsInteger(object)) return ToInteger(field, object);
  const PyNumberMethods* number = Py_TYPE(object.ptr())->tp_as_number;
  if (PyFloat_Check(object.ptr()) || (number != nullptr && number->nb_float != nullptr)) {
    const double value = PyFloat_AsDouble(object.ptr());
    if (value == -1.0 && PyErr_Occurred()) throw py::error_already_set();
    return value;
  }
  Refuse(field, "must be None, bool, int, float, str or a list", object);
}

py::object ToPython(const FieldValue& value) {
  return std::visit(
      [](const auto& v) -> py::object {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return py::none();
        } else if constexpr (std::is_same_v<T, JsonText>) {
          return LoadJson(v);
        } else if constexpr (std::is_same_v<T, std::vector<std::pair<int64_t, double>>>) {
          py::dict biases;
          for (const auto& [id, bias] : v) biases[py::int_(id)] = py::float_(bias);
          return biases;
        } else {
          return py::cast(v);
        }
      },
      value);
}

}  // namespace fastllm::bindings
