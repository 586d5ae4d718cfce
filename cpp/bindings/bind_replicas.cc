// The replicas of an engine with data_parallel_size > 1.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>

#include "bindings/engine_class.h"
#include "bindings/errors.h"
#include "bindings/timeout.h"
#include "core/replicas/engine_group.h"
#include "fastllm/replica.h"

namespace py = pybind11;

namespace fastllm::bindings {

void BindReplicas(py::module_& m, EngineClass* engine) {
  py::class_<ReplicaInfo>(m, "ReplicaInfo", "One of the engines behind a handle.")
      .def_property_readonly(
          "state", [](const ReplicaInfo& r) { return ReplicaStateName(r.state); },
          "'serving', 'draining', 'drained', 'failed' or 'restarting'.")
      .def_readonly("reason", &ReplicaInfo::reason, "Of the last failure; empty when there was none.")
      .def_readonly("stats", &ReplicaInfo::stats, "EngineStats; counts go on over restarts.")
      .def_readonly("live", &ReplicaInfo::live, "Outputs that were sent to it and have not ended.")
      .def_readonly("requests", &ReplicaInfo::requests, "Requests that were sent to it.")
      .def_readonly("routed_prefix", &ReplicaInfo::routed_prefix, "Of these, because of their prefix.")
      .def_readonly("routed_session", &ReplicaInfo::routed_session, "Of these, because of their session.")
      .def_readonly("restarts", &ReplicaInfo::restarts);
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  (*engine)
      .def("replicas", &Engine::replicas, no_gil, "ReplicaInfo of each engine behind this one; of itself if it is one.")
      .def(
          "await_serving", [](Engine& e, double timeout_s) { ThrowIfError(e.AwaitServing(TimeoutOf(timeout_s))); },
          py::arg("timeout_s"), no_gil,
          "Returns when requests are taken: at once, or when a replica that failed has been made anew.")
      .def(
          "drain_replica", [](Engine& e, int32_t replica) { ThrowIfError(e.DrainReplica(replica)); },
          py::arg("replica"), no_gil, "It takes no more requests; what it has runs to its end.")
      .def(
          "resume_replica", [](Engine& e, int32_t replica) { ThrowIfError(e.ResumeReplica(replica)); },
          py::arg("replica"), no_gil, "It takes requests again.")
      .def(
          "restart_replica", [](Engine& e, int32_t replica) { ThrowIfError(e.RestartReplica(replica)); },
          py::arg("replica"), no_gil, "Makes a drained replica anew, in the background.");
  m.def("replica_of", &ReplicaOfHandle, py::arg("handle"), "The replica that a handle of Engine.submit() belongs to.");
}

}  // namespace fastllm::bindings
