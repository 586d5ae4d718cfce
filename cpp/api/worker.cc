#include "fastllm/worker.h"

#include <memory>
#include <utility>

#include "api/choose_runner.h"
#include "fastllm/config_json.h"
#include "runtime/executor/rank_worker.h"
#include "runtime/runner/make_runner.h"

namespace fastllm {
namespace {

Result<std::unique_ptr<runtime::StepRunner>> MakeRunner(const runtime::RankJob& job, const runtime::Ranks& ranks,
                                                        runtime::PhaseSeconds* phases) {
  FASTLLM_ASSIGN_OR_RETURN(EngineConfig config, EngineConfigFromJson(job.engine));
  config.runtime.cpu_threads = job.num_threads;
  FASTLLM_ASSIGN_OR_RETURN(
      auto source, runtime::OpenModel(config.model.model, config.model.load_format, config.model.generation_config));
  // The driver has looked at the memory, of which the ranks take their shares at one time.
  FASTLLM_ASSIGN_OR_RETURN(api::RunnerChoice choice, api::ChooseRunner(config, source, /*available_bytes=*/0));
  choice.options.ranks = ranks;
  return runtime::MakeStepRunner(std::move(source), choice.options, phases);
}

}  // namespace

int RunWorker(int socket) {
  runtime::RankWorkerOptions options;
  options.make_runner = MakeRunner;
  return runtime::ServeRank(socket, options);
}

}  // namespace fastllm
