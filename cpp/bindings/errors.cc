#include "bindings/errors.h"

#include <pybind11/pybind11.h>

#include <cstdint>
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
    case StatusCode::kDeadlineExceeded: return "RequestTimeoutError";
    case StatusCode::kOk:
    case StatusCode::kInternal: break;
  }
  return "InternalError";
}

// retry_after_ms: 0, or what becomes the exception's retry_after, in seconds.
void Raise(const char* class_name, const char* message, int64_t retry_after_ms = 0) {
  py::object cls = py::module_::import("fastllm_core.errors").attr(class_name);
  // A message may quote bytes of a file, or a text that was cut within a character.
  const py::object text = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(message, static_cast<Py_ssize_t>(std::strlen(message)), "replace"));
  if (!text) return;
  py::object error = cls(text);
  if (retry_after_ms > 0) error.attr("retry_after") = static_cast<double>(retry_after_ms) / 1000;
  PyErr_SetObject(cls.ptr(), error.ptr());
}

void Translate(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const StatusError& e) {
    const int64_t retry_after_ms = e.status().retry_after_ms();
    Raise(retry_after_ms > 0 ? "QueueFullError" : ClassName(e.status().code()), e.what(), retry_after_ms);
  } catch (const UnknownOptionError& e) {
    Raise("UnknownOptionError", e.what());
  } catch (const InternalError& e) {
    Raise("InternalError", e.what());
  }
}

}  // namespace

void RegisterErrors() { py::register_local_exception_translator(&Translate); }

}  // namespace fastllm::bindings
