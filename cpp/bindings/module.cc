// The extension module fastllm_core._C.
#include <pybind11/pybind11.h>

#include "bindings/bind.h"
#include "bindings/errors.h"
#include "fastllm/version.h"

PYBIND11_MODULE(_C, m) {
  namespace b = fastllm::bindings;
  m.doc() = "The engine of fastllm_core.";
  m.attr("__version__") = FASTLLM_VERSION;
  b::RegisterErrors();
  b::BindConfig(m);
  b::BindOutput(m);
  b::BindText(m);
  b::BindRequest(m);
  b::BindEngine(m);
  b::BindWorker(m);
  b::BindStreamRelay(m);
  b::BindReplay(m);
  b::BindGguf(m);

  auto testing = m.def_submodule("_core_testing", "Rooms of the core, for the project's own tests.");
  b::BindTestingStep(testing);
  b::BindTestingScheduler(testing);
  b::BindTestingKv(testing);
  b::BindTestingText(testing);
  b::BindTestingModel(testing);
}
