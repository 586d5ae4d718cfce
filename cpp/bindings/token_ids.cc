#include "bindings/token_ids.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "bindings/errors.h"
#include "fastllm/status.h"

namespace py = pybind11;

namespace fastllm::bindings {
namespace {

// Ints of a list are objects all over the memory; so many are asked for ahead of the one that is read.
constexpr Py_ssize_t kAhead = 16;

// The ids of a list or tuple of plain ints, read where they are: nothing of Python runs meanwhile, so nothing can
// change it. False where it holds anything else.
bool ReadPlainInts(PyObject* list, std::vector<int32_t>* ids) {
  if (!PyList_CheckExact(list) && !PyTuple_CheckExact(list)) return false;
  PyObject* const* items = PySequence_Fast_ITEMS(list);
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(list);
  ids->resize(static_cast<size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (i + kAhead < size) __builtin_prefetch(items[i + kAhead]);
    if (!PyLong_CheckExact(items[i])) return false;
    int overflow = 0;
    const long value = PyLong_AsLongAndOverflow(items[i], &overflow);
    if (overflow != 0 || value < INT32_MIN || value > INT32_MAX) return false;
    (*ids)[static_cast<size_t>(i)] = static_cast<int32_t>(value);
  }
  return true;
}

template <typename T>
bool CopyIds(const void* from, size_t size, std::vector<int32_t>* ids) {
  const T* const values = static_cast<const T*>(from);
  if (!std::all_of(values, values + size, [](T v) { return std::in_range<int32_t>(v); })) return false;
  ids->assign(values, values + size);
  return true;
}

// The ids of an array (numpy, array.array) of integers of 32 or 64 bits in one piece. False where it is none.
bool ReadBuffer(PyObject* object, std::vector<int32_t>* ids) {
  if (PyObject_CheckBuffer(object) == 0) return false;
  Py_buffer view;
  if (PyObject_GetBuffer(object, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return false;
  }
  const std::string_view format = view.format == nullptr ? "" : view.format;
  bool read = false;
  if (view.ndim == 1 && format.size() == 1) {
    const auto size = static_cast<size_t>(view.shape[0]);
    const bool is_signed = format == "i" || format == "l" || format == "q";
    const bool is_unsigned = format == "I" || format == "L" || format == "Q";
    if (is_signed && view.itemsize == 4) read = CopyIds<int32_t>(view.buf, size, ids);
    if (is_signed && view.itemsize == 8) read = CopyIds<int64_t>(view.buf, size, ids);
    if (is_unsigned && view.itemsize == 4) read = CopyIds<uint32_t>(view.buf, size, ids);
    if (is_unsigned && view.itemsize == 8) read = CopyIds<uint64_t>(view.buf, size, ids);
  }
  PyBuffer_Release(&view);
  return read;
}

// Of any sequence, item by item.
std::vector<int32_t> ReadItems(py::handle object) {
  // A copy: an element's __index__ may change the list while it is read.
  const auto items = py::reinterpret_steal<py::object>(PySequence_Tuple(object.ptr()));
  if (!items) throw py::error_already_set();
  const Py_ssize_t size = PyTuple_GET_SIZE(items.ptr());
  std::vector<int32_t> ids(static_cast<size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i) {
    py::handle item(PyTuple_GET_ITEM(items.ptr(), i));
    const auto where = [i] { return "prompt_token_ids[" + std::to_string(i) + "]"; };
    py::object converted;
    py::handle index = item;
    if (!PyLong_CheckExact(item.ptr())) {
      if (!PyIndex_Check(item.ptr()) || PyBool_Check(item.ptr())) {
        throw py::type_error(where() + " must be an int, got " + py::repr(item).cast<std::string>());
      }
      converted = py::reinterpret_steal<py::object>(PyNumber_Index(item.ptr()));
      if (!converted) throw py::error_already_set();
      index = converted;
    }
    int overflow = 0;
    const long value = PyLong_AsLongAndOverflow(index.ptr(), &overflow);
    if (overflow != 0 || value < INT32_MIN || value > INT32_MAX) {
      throw StatusError(Status::InvalidArgument(where() + " = " + py::repr(index).cast<std::string>() +
                                                " is no token id: it does not fit in 32 bits"));
    }
    ids[static_cast<size_t>(i)] = static_cast<int32_t>(value);
  }
  return ids;
}

}  // namespace

std::vector<int32_t> TokenIds(py::handle object) {
  if (PyUnicode_Check(object.ptr()) || PyBytes_Check(object.ptr()) || !PySequence_Check(object.ptr())) {
    throw py::type_error("prompt_token_ids must be a list of int, got " + std::string(Py_TYPE(object.ptr())->tp_name));
  }
  std::vector<int32_t> ids;
  // What these do not take is read, or refused by its place and value, item by item.
  if (ReadPlainInts(object.ptr(), &ids) || ReadBuffer(object.ptr(), &ids)) return ids;
  return ReadItems(object);
}

}  // namespace fastllm::bindings
