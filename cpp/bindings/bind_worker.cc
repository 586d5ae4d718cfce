// run_worker(): the process of a rank. run_node(): the ranks of a node that is not the engine's.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bind.h"
#include "bindings/errors.h"
#include "fastllm/worker.h"

namespace py = pybind11;

namespace fastllm::bindings {

void BindWorker(py::module_& m) {
  py::class_<GroupRequest>(m, "GroupRequest", "Process groups that a rank has to make with ranks of other nodes.")
      .def_readonly("rank", &GroupRequest::rank)
      .def_readonly("world", &GroupRequest::world)
      .def_readonly("store_host", &GroupRequest::store_host)
      .def_readonly("store_port", &GroupRequest::store_port)
      .def_readonly("interface_address", &GroupRequest::interface_address)
      .def_readonly("timeout_ms", &GroupRequest::timeout_ms)
      .def_readonly("groups", &GroupRequest::groups);
  m.def(
      "run_worker", &RunWorker, py::arg("socket"), py::arg("make_groups") = nullptr,
      py::call_guard<py::gil_scoped_release>(),
      "Runs one rank of the engine at the other end of the socket; returns the exit status. make_groups(GroupRequest) "
      "makes the groups across nodes and returns the names under which they are registered.");
  m.def(
      "run_node",
      [](const EngineConfig& config) {
        py::gil_scoped_release release;
        ThrowIfError(RunNode(config));
      },
      py::arg("config"), "Runs the ranks of node config.node_rank until the engine of node 0 ends.");
}

}  // namespace fastllm::bindings
