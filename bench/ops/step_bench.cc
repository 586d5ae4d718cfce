// Where the time of a decode step goes, by part, through the whole engine on the CPU.
//   step_bench MODEL [name filter [kv_cache_dtype]]
// Streams that all decode, 1 and 64 of them; times are microseconds of a step, medians of the counted steps. Ops are
// timed on the thread that calls them, by entries of the op table that stand before the real ones. What a step takes
// beyond its ops is "rest" (views, batch, copies of ids), and beyond the runner "scheduling" (plan, hand-over,
// outputs). Prints `RESULT {json}` lines, and the same as a table on standard error.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <numeric>
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

// Seconds of one step.
struct Times {
  double parts[bench::kParts] = {};
  double rest = 0.0;        // inside the runner and outside its ops
  double scheduling = 0.0;  // outside the runner
  double wall = 0.0;        // to the start of the next
};

// Of each part on its own, so that a step that was held up counts in none; they need not add up to that of `wall`.
Times Medians(const std::vector<Times>& steps) {
  const auto of = [&steps](auto get) {
    std::vector<double> values;
    for (const Times& t : steps) values.push_back(get(t));
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
  };
  Times medians;
  for (int32_t i = 0; i < bench::kParts; ++i) medians.parts[i] = of([i](const Times& t) { return t.parts[i]; });
  medians.rest = of([](const Times& t) { return t.rest; });
  medians.scheduling = of([](const Times& t) { return t.scheduling; });
  medians.wall = of([](const Times& t) { return t.wall; });
  return medians;
}

// Runs plans on a thread of its own and times the steps of `streams` single tokens.
class TimedExecutor : public Executor {
 public:
  // cache: the kv_cache_dtype.
  TimedExecutor(const std::string& model, const ops::OpTable& table, const std::string& cache, int32_t streams,
                int32_t blocks)
      : streams_(streams), cache_(cache) {
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
  Times medians() const { return Medians(steps_); }

 private:
  runtime::RunnerOptions Options(const runtime::ModelSource& source, int32_t blocks) const {
    runtime::RunnerOptions options;
    options.num_threads = ops::PhysicalCores();
    options.kv_dtype = runtime::KvDType(cache_, runtime::UsesQuantized(source, true));
    options.linear.batch_invariant = true;  // as an engine has it
    options.sched.max_model_len = kPrompt + kTokens;
    options.sched.max_num_seqs = streams_;
    options.sched.max_num_batched_tokens = 1024;
    options.kv.num_blocks = blocks;
    return options;
  }

  void Work(const std::string& model, const ops::OpTable& table, int32_t blocks, std::promise<Status>* loaded) {
    auto source = runtime::OpenModel(model, "auto");
    if (!source.ok()) return loaded->set_value(source.status());
    runtime::RunnerOptions options = Options(*source, blocks);
    options.ops = &table;
    runtime::PhaseSeconds phases;
    auto runner = runtime::ModelRunner::Create(std::move(*source), options, &phases);
    loaded->set_value(runner.status());
    if (runner.ok()) Loop(**runner);
  }

  void Loop(runtime::ModelRunner& runner) {
    int32_t decoding = 0;  // steps in a row in which all streams decode
    bool counts = false;
    Clock::time_point before;
    while (const StepPlan* const plan = queue_.Next()) {
      const Clock::time_point start = Clock::now();
      if (counts) EndStep(Seconds(start - before));
      before = start;
      const bool decodes = plan->total_tokens == streams_ && static_cast<int32_t>(plan->rows.size()) == streams_;
      decoding = decodes ? decoding + 1 : 0;
      counts = decoding > kSkipped && decoding <= kSkipped + kSteps;
      std::fill(std::begin(bench::seconds), std::end(bench::seconds), 0.0);
      StepResult result = runner.Execute(*plan);
      if (counts) AddStep(Seconds(Clock::now() - start));
      queue_.Answer(std::move(result));
    }
  }

  void AddStep(double runner) {
    Times& step = steps_.emplace_back();
    std::copy(std::begin(bench::seconds), std::end(bench::seconds), step.parts);
    step.scheduling = -runner;
    step.rest = std::accumulate(std::begin(step.parts), std::end(step.parts), runner, std::minus<>());
  }
  void EndStep(double wall) {
    steps_.back().wall = wall;
    steps_.back().scheduling += wall;
  }

  const int32_t streams_;
  const std::string cache_;
  std::vector<Times> steps_;  // that are counted
  bench::PlanQueue queue_;
  std::thread worker_;
};

Times Measure(const std::string& model, const ops::OpTable& table, const std::string& cache, int32_t streams) {
  SchedConfig sched;
  sched.max_model_len = kPrompt + kTokens;
  sched.max_num_seqs = streams;
  sched.max_num_batched_tokens = 1024;
  KvConfig kv;
  kv.num_blocks = streams * ((kPrompt + kTokens) / kv.block_size + 2) + 1;
  auto executor = std::make_unique<TimedExecutor>(model, table, cache, streams, kv.num_blocks);
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
  const Times medians = timed->medians();
  engine.Shutdown();
  return medians;
}

void Print(const Times& t, int32_t streams, const std::string& filter) {
  std::vector<std::pair<std::string, double>> lines;
  for (int32_t i = 0; i < bench::kParts; ++i) lines.emplace_back(bench::PartName(static_cast<Part>(i)), t.parts[i]);
  lines.emplace_back("rest", t.rest);
  lines.emplace_back("scheduling", t.scheduling);
  lines.emplace_back("step", t.wall);
  for (const auto& [part, seconds] : lines) {
    const std::string name = "cpu/step" + std::to_string(streams) + "/" + part;
    const double us = seconds * 1e6;
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
    std::fprintf(stderr, "usage: step_bench MODEL [name filter [kv_cache_dtype]]\n");
    return 2;
  }
  const std::string filter = argc > 2 ? argv[2] : "";
  const std::string cache = argc > 3 ? argv[3] : "auto";
  if (cache != "auto" && cache != "float32" && cache != "float16" && cache != "bfloat16" && cache != "int8") {
    std::fprintf(stderr, "step_bench: kv_cache_dtype is \"%s\", not auto, float32, float16, bfloat16 or int8\n",
                 cache.c_str());
    return 2;
  }
  const fastllm::ops::OpTable table = fastllm::bench::TimedCpuOps();
  for (const int streams : {1, 64}) {
    const std::string prefix = "cpu/step" + std::to_string(streams) + "/";
    if (prefix.find(filter) == std::string::npos && filter.find(prefix) == std::string::npos) continue;
    fastllm::Print(fastllm::Measure(argv[1], table, cache, streams), streams, filter);
  }
  return 0;
}
