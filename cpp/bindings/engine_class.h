// The Python class of Engine, which several files fill.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "fastllm/engine.h"

namespace fastllm::bindings {

// The engine joins its threads when it goes; they must not wait for us meanwhile.
struct DeleteWithoutGil {
  void operator()(Engine* engine) const {
    pybind11::gil_scoped_release release;
    delete engine;
  }
};
using EngineHolder = std::unique_ptr<Engine, DeleteWithoutGil>;
using EngineClass = pybind11::class_<Engine, EngineHolder>;

// KvEvent, KvEventBatch, and what the engine says of its prefix cache.
void BindPrefixCache(pybind11::module_& m, EngineClass* engine);
// ReplicaInfo, and what the engine says of its replicas.
void BindReplicas(pybind11::module_& m, EngineClass* engine);

}  // namespace fastllm::bindings
