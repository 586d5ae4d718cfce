#include "bindings/errors.h"

#include <pybind11/pybind11.h>

#include <cstring>

#include "core/base/check.h"

namespace py = pybind11;

namespace fastllm::bindings {
namespace {

// Name in fastllm_core/errors.py.
const char* ClassName(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument: return "InvalidArgumentError";
    case StatusCode::kNotFound: return "ModelNotFoundError";
    case StatusCode::kDataLoss: return "CorruptFileError";
    case StatusCode::kUnimplemented: return "UnsupportedError";
    case StatusCode::kResourceExhausted: return "ResourceExhaustedError";
    case StatusCode::kFailedPrecondition: return "InvalidStateError";
    case StatusCode::kUnavailable: return "EngineDeadError";
    case StatusCode::kOk:
    case StatusCode::kInternal: break;
  }
  return "InternalError";
}

void Raise(const char* class_name, const char* message) {
  py::object cls = py::module_::import("fastllm_core.errors").attr(class_name);
  // A message may quote bytes of a file, or a text that was cut within a character.
  const py::object text = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(message, static_cast<Py_ssize_t>(std::strlen(message)), "replace"));
  if (text) PyErr_SetObject(cls.ptr(), text.ptr());
}

void Translate(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const StatusError& e) {
    Raise(ClassName(e.status().code()), e.what());
  } catch (const UnknownOptionError& e) {
    Raise("UnknownOptionError", e.what());
  } catch (const InternalError& e) {
    Raise("InternalError", e.what());
  }
}

}  // namespace

void RegisterErrors() { py::register_local_exception_translator(&Translate); }

}  // namespace fastllm::bindings
