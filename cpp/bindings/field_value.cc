#include "bindings/field_value.h"

#include <pybind11/stl.h>

#include <optional>
#include <string>
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

FieldValue FromList(std::string_view field, py::handle object) {
  std::vector<int64_t> ids;
  std::vector<std::string> strings;
  auto sequence = py::reinterpret_borrow<py::sequence>(object);
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

FieldValue FromPython(std::string_view field, py::handle object) {
  if (object.is_none()) return std::monostate{};
  if (PyBool_Check(object.ptr())) return object.ptr() == Py_True;
  if (PyUnicode_Check(object.ptr())) return Utf8Text(field, object);
  if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) return FromList(field, object);
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
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::monostate>) {
          return py::none();
        } else {
          return py::cast(v);
        }
      },
      value);
}

}  // namespace fastllm::bindings
