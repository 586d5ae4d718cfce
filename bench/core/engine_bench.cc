// What the engine's loop costs beside an executor: an executor double whose steps take a fixed time on a thread of its
// own, as a device's do, and 256 requests that decode. The bubble between two steps, and the engine thread's calls of
// operator new. Prints `RESULT {json}` lines; the argument, if any, filters.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/engine/engine_core.h"
#include "plan_queue.h"

namespace {

thread_local int64_t num_allocations = 0;

}  // namespace

// Not inlined: gcc would see free() of memory that operator new made, and warn.
[[gnu::noinline]] void* operator new(size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace fastllm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kStep = std::chrono::milliseconds(2);

struct Measured {
  std::vector<double> gaps;         // seconds between two steps
  double allocations_per_step = 0;  // of the engine thread, in the middle of the load
};

// Steps take `step` each, one after the other. Its thread notes how long it had no plan between two steps.
class FixedTimeExecutor : public Executor {
 public:
  FixedTimeExecutor(Clock::duration step, Measured* measured) : step_(step), measured_(measured) {
    worker_ = std::thread([this] { Work(); });
  }
  ~FixedTimeExecutor() override {
    queue_.Stop();
    worker_.join();
  }

  void Submit(const StepPlan& plan) override { queue_.Push(plan); }

  void Wait(StepResult* result) override {
    queue_.Take(result);
    ++num_waits_;
    if (num_waits_ == kFirstCounted) before_ = num_allocations;
    if (num_waits_ == kLastCounted) {
      measured_->allocations_per_step = static_cast<double>(num_allocations - before_) / (kLastCounted - kFirstCounted);
    }
  }

 private:
  static constexpr int kFirstCounted = 200, kLastCounted = 700;  // steps

  void Work() {
    Clock::time_point idle_since{};
    while (const StepPlan* const plan = queue_.Next()) {
      const Clock::time_point start = Clock::now();
      if (idle_since != Clock::time_point{})
        measured_->gaps.push_back(std::chrono::duration<double>(start - idle_since).count());
      StepResult result;
      result.step_id = plan->step_id;
      for (const ScheduledRow& row : plan->rows) {
        if (row.sample) result.rows.push_back({row.id, {7}});
      }
      std::this_thread::sleep_until(start + step_ - std::chrono::microseconds(200));
      while (Clock::now() < start + step_) {
      }
      idle_since = start + step_;  // a thread that woke late is not the loop's fault
      queue_.Answer(std::move(result));
    }
  }

  const Clock::duration step_;
  Measured* measured_;
  int num_waits_ = 0;
  int64_t before_ = 0;  // allocations of the engine thread until kFirstCounted
  bench::PlanQueue queue_;
  std::thread worker_;
};

// A load of decodes through the whole engine; a host drains it as it comes.
Measured Measure(bool async, int32_t running) {
  constexpr int32_t kTokens = 800;
  SchedConfig sched;
  sched.max_num_seqs = running;
  sched.max_num_batched_tokens = 8192;
  sched.async_scheduling = async;
  KvConfig kv;
  kv.num_blocks = running * (kTokens / kv.block_size + 4);
  auto tokens = std::make_shared<TokenTable>();
  for (int i = 0; i < 64; ++i) tokens->bytes.push_back(" word");
  tokens->special.assign(64, 0);
  Measured measured;
  EngineCore engine(sched, kv, std::make_unique<FixedTimeExecutor>(kStep, &measured), tokens);
  for (int32_t id = 1; id <= running; ++id) {
    auto request = std::make_shared<Request>();
    request->id = static_cast<RequestId>(id);
    request->prompt.assign(16, id % 64);
    request->max_tokens = kTokens;
    if (!engine.Add(std::move(request)).ok()) std::exit(1);
  }
  std::vector<RequestDelta> deltas;
  for (int32_t left = running; left > 0;) {
    engine.DrainInto(std::chrono::seconds(10), &deltas);
    for (const RequestDelta& delta : deltas) left -= delta.finish_reason != FinishReason::kNone ? 1 : 0;
  }
  engine.Shutdown();
  return measured;
}

// The median time between two steps, in percent of a step.
double BubblePercent(Measured* measured) {
  std::vector<double>& gaps = measured->gaps;
  std::nth_element(gaps.begin(), gaps.begin() + static_cast<ptrdiff_t>(gaps.size() / 2), gaps.end());
  return gaps[gaps.size() / 2] / std::chrono::duration<double>(kStep).count() * 100.0;
}

}  // namespace
}  // namespace fastllm

int main(int argc, char** argv) {
  const std::string bubble = "engine_bubble/running=256", allocations = "allocations_per_step";
  const std::string filter = argc > 1 ? argv[1] : "";
  if (bubble.find(filter) == std::string::npos && allocations.find(filter) == std::string::npos) return 0;
  fastllm::Measured async = fastllm::Measure(true, 256);
  std::printf("RESULT {\"name\": \"%s\", \"value\": %.4g, \"unit\": \"count\", \"reference\": null, \"ratio\": null}\n",
              allocations.c_str(), async.allocations_per_step);
  // The reference is the same loop with one step at a time.
  fastllm::Measured sync = fastllm::Measure(false, 256);
  const double ours = fastllm::BubblePercent(&async), theirs = fastllm::BubblePercent(&sync);
  std::printf("RESULT {\"name\": \"%s\", \"value\": %.4g, \"unit\": \"%%\", \"reference\": %.4g, \"ratio\": %.4g}\n",
              bubble.c_str(), ours, theirs, theirs / ours);
  return 0;
}
