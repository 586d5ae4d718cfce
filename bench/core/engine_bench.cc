// What the engine's loop costs beside an executor: an executor double whose steps take a fixed time on a thread of its
// own, as a device's do, and 256 requests that decode. Prints `RESULT {json}` lines; the argument, if any, filters.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/engine/engine_core.h"

namespace fastllm {
namespace {

using Clock = std::chrono::steady_clock;

// Steps take `step` each, one after the other. Its thread notes how long it had no plan between two steps.
class FixedTimeExecutor : public Executor {
 public:
  FixedTimeExecutor(Clock::duration step, std::vector<double>* gaps) : step_(step), gaps_(gaps) {
    worker_ = std::thread([this] { Work(); });
  }
  ~FixedTimeExecutor() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  void Submit(StepPlan plan) override {
    {
      std::lock_guard lock(mutex_);
      plans_.push_back(std::move(plan));
    }
    changed_.notify_all();
  }

  StepResult Wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !results_.empty(); });
    StepResult result = std::move(results_.front());
    results_.pop_front();
    return result;
  }

 private:
  void Work() {
    Clock::time_point idle_since{};
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || !plans_.empty(); });
      if (stop_) return;
      const Clock::time_point start = Clock::now();
      if (idle_since != Clock::time_point{})
        gaps_->push_back(std::chrono::duration<double>(start - idle_since).count());
      const StepPlan plan = std::move(plans_.front());
      plans_.pop_front();
      lock.unlock();
      StepResult result;
      result.step_id = plan.step_id;
      for (const ScheduledRow& row : plan.rows) {
        if (row.sample) result.rows.push_back({row.id, {7}});
      }
      std::this_thread::sleep_until(start + step_ - std::chrono::microseconds(200));
      while (Clock::now() < start + step_) {
      }
      lock.lock();
      idle_since = start + step_;  // a thread that woke late is not the loop's fault
      results_.push_back(std::move(result));
      changed_.notify_all();
    }
  }

  const Clock::duration step_;
  std::vector<double>* gaps_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<StepPlan> plans_;
  std::deque<StepResult> results_;
  bool stop_ = false;
  std::thread worker_;
};

// The bubble: the median time between two steps, in percent of a step.
double BubblePercent(bool async, int32_t running) {
  constexpr auto kStep = std::chrono::milliseconds(2);
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
  std::vector<double> gaps;
  {
    EngineCore engine(sched, kv, std::make_unique<FixedTimeExecutor>(kStep, &gaps), tokens);
    for (int32_t id = 1; id <= running; ++id) {
      auto request = std::make_shared<Request>();
      request->id = static_cast<RequestId>(id);
      request->prompt.assign(16, id % 64);
      request->max_tokens = kTokens;
      if (!engine.Add(std::move(request)).ok()) std::exit(1);
    }
    for (int32_t left = running; left > 0;) {
      for (const RequestDelta& delta : engine.Drain(std::chrono::seconds(10))) {
        left -= delta.finish_reason != FinishReason::kNone ? 1 : 0;
      }
    }
  }
  std::nth_element(gaps.begin(), gaps.begin() + static_cast<ptrdiff_t>(gaps.size() / 2), gaps.end());
  return gaps[gaps.size() / 2] / std::chrono::duration<double>(kStep).count() * 100.0;
}

}  // namespace
}  // namespace fastllm

int main(int argc, char** argv) {
  const std::string name = "engine_bubble/running=256";
  if (argc > 1 && name.find(argv[1]) == std::string::npos) return 0;
  // The reference is the same loop with one step at a time.
  const double async = fastllm::BubblePercent(true, 256), sync = fastllm::BubblePercent(false, 256);
  std::printf("RESULT {\"name\": \"%s\", \"value\": %.4g, \"unit\": \"%%\", \"reference\": %.4g, \"ratio\": %.4g}\n",
              name.c_str(), async, sync, sync / async);
  return 0;
}
