// PlanQueue: how plans reach the thread of an executor double, and results come back.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "core/step/step_plan.h"
#include "core/step/step_result.h"

namespace fastllm::bench {

// Thread-safe. The engine's thread calls Push() and Take(), the executor's Next() and Answer().
class PlanQueue {
 public:
  // `plan` lives until its result is taken.
  void Push(const StepPlan& plan) {
    {
      const std::lock_guard lock(mutex_);
      plans_.push_back(&plan);
    }
    changed_.notify_all();
  }

  // Waits for the oldest result.
  void Take(StepResult* result) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !results_.empty(); });
    std::swap(*result, results_.front());
    results_.pop_front();
  }

  // Waits for a plan; null once Stop() has been called.
  const StepPlan* Next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stop_ || !plans_.empty(); });
    if (stop_) return nullptr;
    const StepPlan* const plan = plans_.front();
    plans_.pop_front();
    return plan;
  }

  void Answer(StepResult result) {
    {
      const std::lock_guard lock(mutex_);
      results_.push_back(std::move(result));
    }
    changed_.notify_all();
  }

  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<const StepPlan*> plans_;
  std::deque<StepResult> results_;
  bool stop_ = false;
};

}  // namespace fastllm::bench
