// run_worker(): the process of a rank.
#include <pybind11/pybind11.h>

#include "bindings/bind.h"
#include "fastllm/worker.h"

namespace py = pybind11;

namespace fastllm::bindings {

void BindWorker(py::module_& m) {
  m.def("run_worker", &RunWorker, py::arg("socket"), py::call_guard<py::gil_scoped_release>(),
        "Runs one rank of the engine at the other end of the socket; returns the exit status.");
}

}  // namespace fastllm::bindings
