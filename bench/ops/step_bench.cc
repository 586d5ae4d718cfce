// Where the time of a decode step goes, by part, through the whole engine on the CPU.
//   step_bench MODEL [name filter]
// Streams that all decode, 1 and 64 of them; times are microseconds of a step. Ops are timed on the thread that calls
// them, by entries of the op table that stand before the real ones. What a step takes beyond its ops is "rest" (views,
// batch, copies of ids), and beyond the runner "scheduling" (plan, hand-over, outputs). Prints `RESULT {json}` lines,
// and the same as a table on standard error.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/engine/engine_core.h"
#include "core/engine/executor.h"
#include "ops/table/op_table.h"
#include "ops/table/threads.h"
#include "plan_queue.h"
#include "runtime/runner/model_runner.h"
#include "timed_ops.h"

namespace fastllm {
namespace {

using Clock = std::chrono::steady_clock;
using bench::Part;

constexpr int32_t kPrompt = 64;
constexpr int32_t kTokens = 160;  // of each stream
constexpr int32_t kSkipped = 24;  // steps that all decode and are not counted
constexpr int32_t kSteps = 100;   // that are

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

struct Totals {
  double parts[bench::kParts] = {};
  double runner = 0.0;  // inside the runner
  double wall = 0.0;
};

// Runs plans on a thread of its own and times the steps of `streams` single tokens.
class TimedExecutor : public Executor {
 public:
  TimedExecutor(const std::string& model, const ops::OpTable& table, int32_t streams, int32_t blocks)
      : streams_(streams) {
    std::promise<Status> loaded;
    std::future<Status> status = loaded.get_future();
    worker_ = std::thread([&] { Work(model, table, blocks, &loaded); });
    const Status s = status.get();
    if (s.ok()) return;
    std::fprintf(stderr, "step_bench: %s\n", s.ToString().c_str());
    std::exit(1);
  }
  ~TimedExecutor() override {
    queue_.Stop();
    worker_.join();
  }

  void Submit(const StepPlan& plan) override { queue_.Push(plan); }
  void Wait(StepResult* result) override { queue_.Take(result); }

  // Of the counted steps, once the engine is done.
  const Totals& kept() const { return kept_; }

 private:
  static runtime::RunnerOptions Options(const runtime::ModelSource& source, int32_t streams, int32_t blocks) {
    runtime::RunnerOptions options;
    options.num_threads = ops::PhysicalCores();
    options.kv_dtype = runtime::KvDType("auto", runtime::UsesQuantized(source, true));
    options.linear.batch_invariant = true;  // as an engine has it
    options.sched.max_model_len = kPrompt + kTokens;
    options.sched.max_num_seqs = streams;
    options.sched.max_num_batched_tokens = 1024;
    options.kv.num_blocks = blocks;
    return options;
  }

  void Work(const std::string& model, const ops::OpTable& table, int32_t blocks, std::promise<Status>* loaded) {
    auto source = runtime::OpenModel(model, "auto");
    if (!source.ok()) return loaded->set_value(source.status());
    runtime::RunnerOptions options = Options(*source, streams_, blocks);
    options.ops = &table;
    runtime::PhaseSeconds phases;
    auto runner = runtime::ModelRunner::Create(std::move(*source), options, &phases);
    loaded->set_value(runner.status());
    if (runner.ok()) Loop(**runner);
  }

  void Loop(runtime::ModelRunner& runner) {
    while (const StepPlan* const plan = queue_.Next()) {
      const bool decodes = plan->total_tokens == streams_ && static_cast<int32_t>(plan->rows.size()) == streams_;
      counted_ = decodes ? counted_ + 1 : 0;
      if (counted_ == kSkipped) {
        std::fill(std::begin(bench::seconds), std::end(bench::seconds), 0.0);
        begin_ = Clock::now();
        totals_.runner = 0.0;
      }
      const Clock::time_point start = Clock::now();
      StepResult result = runner.Execute(*plan);
      totals_.runner += Seconds(Clock::now() - start);
      if (counted_ == kSkipped + kSteps - 1) Keep();
      queue_.Answer(std::move(result));
    }
  }

  void Keep() {
    totals_.wall = Seconds(Clock::now() - begin_);
    std::copy(std::begin(bench::seconds), std::end(bench::seconds), totals_.parts);
    kept_ = totals_;
  }

  const int32_t streams_;
  int32_t counted_ = 0;  // steps in a row in which all streams decode
  Clock::time_point begin_;
  Totals totals_, kept_;
  bench::PlanQueue queue_;
  std::thread worker_;
};

Totals Measure(const std::string& model, const ops::OpTable& table, int32_t streams) {
  SchedConfig sched;
  sched.max_model_len = kPrompt + kTokens;
  sched.max_num_seqs = streams;
  sched.max_num_batched_tokens = 1024;
  KvConfig kv;
  kv.num_blocks = streams * ((kPrompt + kTokens) / kv.block_size + 2) + 1;
  auto executor = std::make_unique<TimedExecutor>(model, table, streams, kv.num_blocks);
  const TimedExecutor* const timed = executor.get();
  EngineCore engine(sched, kv, std::move(executor), nullptr);
  for (int32_t id = 1; id <= streams; ++id) {
    auto request = std::make_shared<Request>();
    request->id = static_cast<RequestId>(id);
    for (int32_t i = 0; i < kPrompt; ++i) request->prompt.push_back(100 + (7919 * (id * kPrompt + i)) % 40000);
    request->max_tokens = kTokens;
    request->sampling.temperature = 0.0f;
    if (const Status s = engine.Add(std::move(request)); !s.ok()) {
      std::fprintf(stderr, "step_bench: %s\n", s.ToString().c_str());
      std::exit(1);
    }
  }
  std::vector<RequestDelta> deltas;
  for (int32_t left = streams; left > 0;) {
    engine.DrainInto(std::chrono::seconds(10), &deltas);
    for (const RequestDelta& delta : deltas) left -= delta.finish_reason != FinishReason::kNone ? 1 : 0;
  }
  const Totals totals = timed->kept();
  engine.Shutdown();
  return totals;
}

void Print(const Totals& t, int32_t streams, const std::string& filter) {
  double ops = 0.0;
  for (const double s : t.parts) ops += s;
  std::vector<std::pair<std::string, double>> lines;
  for (int32_t i = 0; i < bench::kParts; ++i) lines.emplace_back(bench::PartName(static_cast<Part>(i)), t.parts[i]);
  lines.emplace_back("rest", t.runner - ops);
  lines.emplace_back("scheduling", t.wall - t.runner);
  lines.emplace_back("step", t.wall);
  for (const auto& [part, seconds] : lines) {
    const std::string name = "cpu/step" + std::to_string(streams) + "/" + part;
    const double us = seconds / kSteps * 1e6;
    std::fprintf(stderr, "| %d | %s | %.1f | %.1f %% |\n", streams, part.c_str(), us, 100.0 * seconds / t.wall);
    if (name.find(filter) == std::string::npos) continue;
    std::printf("RESULT {\"name\": \"%s\", \"value\": %.2f, \"unit\": \"us\", \"reference\": null, \"ratio\": null}\n",
                name.c_str(), us);
  }
}

}  // namespace
}  // namespace fastllm

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: step_bench MODEL [name filter]\n");
    return 2;
  }
  const std::string filter = argc > 2 ? argv[2] : "";
  const fastllm::ops::OpTable table = fastllm::bench::TimedCpuOps();
  for (const int streams : {1, 64}) {
    const std::string prefix = "cpu/step" + std::to_string(streams) + "/";
    if (prefix.find(filter) == std::string::npos && filter.find(prefix) == std::string::npos) continue;
    fastllm::Print(fastllm::Measure(argv[1], table, streams), streams, filter);
  }
  return 0;
}
