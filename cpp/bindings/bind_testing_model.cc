// LogitProbe, for pytest.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/errors.h"
#include "runtime/runner/logit_probe.h"

namespace py = pybind11;

namespace fastllm::bindings {
namespace {

// float32 array [tokens, vocab] that owns the vector.
py::array_t<float> Logits(runtime::LogitProbe& probe, const std::vector<TokenId>& tokens, int32_t chunk) {
  auto values = std::make_unique<std::vector<float>>();
  {
    py::gil_scoped_release release;
    *values = ValueOrThrow(probe.Logits(tokens, chunk));
  }
  const auto vocab = static_cast<py::ssize_t>(probe.vocab_size());
  const auto rows = static_cast<py::ssize_t>(values->size()) / vocab;
  float* data = values->data();
  py::capsule owner(values.release(), [](void* p) { delete static_cast<std::vector<float>*>(p); });
  return py::array_t<float>({rows, vocab}, data, owner);
}

}  // namespace

void BindTestingModel(py::module_& m) {
  py::class_<runtime::LogitProbe>(m, "LogitProbe", "Logits of every position of one token sequence.")
      .def(py::init([](const std::string& path, int32_t num_threads, const std::string& cpu_precision,
                       const std::string& kv_cache_dtype, const std::string& device, const std::string& dtype,
                       const std::string& attention_backend, const std::string& quantization, bool device_runner,
                       int32_t tensor_parallel_size, int32_t pipeline_parallel_size, bool batch_invariant) {
             py::gil_scoped_release release;
             return ValueOrThrow(runtime::LogitProbe::Create(
                 path, num_threads,
                 {device, dtype, cpu_precision, kv_cache_dtype, attention_backend, quantization, device_runner,
                  tensor_parallel_size, pipeline_parallel_size, batch_invariant}));
           }),
           py::arg("model"), py::arg("num_threads") = 1, py::arg("cpu_precision") = "auto",
           py::arg("kv_cache_dtype") = "auto", py::arg("device") = "cpu", py::arg("dtype") = "float32",
           py::arg("attention_backend") = "auto", py::arg("quantization") = "", py::arg("device_runner") = false,
           py::arg("tensor_parallel_size") = 1, py::arg("pipeline_parallel_size") = 1,
           py::arg("batch_invariant") = false)
      .def_property_readonly("vocab_size", &runtime::LogitProbe::vocab_size)
      .def("logits", &Logits, py::arg("tokens"), py::arg("chunk"));
}

}  // namespace fastllm::bindings
