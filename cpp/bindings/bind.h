// What each file of the binding adds to the module. All run once, in module init, with the GIL.
#pragma once

#include <pybind11/pybind11.h>

namespace fastllm::bindings {

// SamplingParams, EngineConfig, FieldDescription.
void BindConfig(pybind11::module_& m);
// RequestDelta, RequestMetrics.
void BindOutput(pybind11::module_& m);
// GenerationRequest, ExtraKeys. Before BindEngine().
void BindRequest(pybind11::module_& m);
// TokenTable, StopFilter.
void BindText(pybind11::module_& m);
// Engine, EngineInfo, EngineStats, ResolvedValue.
void BindEngine(pybind11::module_& m);
// run_worker().
void BindWorker(pybind11::module_& m);
// StreamRelay. After BindEngine().
void BindStreamRelay(pybind11::module_& m);
// ReplayReport, replay_recording().
void BindReplay(pybind11::module_& m);
// gguf_metadata().
void BindGguf(pybind11::module_& m);

// Parts of the core for pytest; in the submodule _core_testing.
void BindTestingStep(pybind11::module_& m);       // StepPlan, StepResult, their parts, the codec
void BindTestingScheduler(pybind11::module_& m);  // Scheduler, SchedConfig, KvConfig, Request
void BindTestingKv(pybind11::module_& m);         // BlockPool, PrefixIndex
void BindTestingText(pybind11::module_& m);       // Detokenizer, StopMatcher, TextStream
void BindTestingModel(pybind11::module_& m);      // LogitProbe

}  // namespace fastllm::bindings
