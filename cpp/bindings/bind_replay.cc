// replay_recording().
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "bindings/bind.h"
#include "bindings/errors.h"
#include "core/engine/replay.h"

namespace py = pybind11;

namespace fastllm::bindings {

void BindReplay(py::module_& m) {
  py::class_<ReplayReport>(m, "ReplayReport", "What a recording held; its plans came out again, byte for byte.")
      .def_readonly("requests", &ReplayReport::requests)
      .def_readonly("steps", &ReplayReport::steps)
      .def_readonly("plan_bytes", &ReplayReport::plan_bytes)
      .def_readonly("tokens", &ReplayReport::tokens)
      .def_readonly("full", &ReplayReport::full)
      .def_readonly("cut", &ReplayReport::cut)
      .def_readonly("failure", &ReplayReport::failure);
  m.def(
      "replay_recording",
      [](const std::string& path) {
        py::gil_scoped_release release;
        return ValueOrThrow(Replay(path));
      },
      py::arg("path"), "Runs a recording of an engine (option record_path) through the scheduler of this build.");
}

}  // namespace fastllm::bindings
