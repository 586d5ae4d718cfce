#include "runtime/executor/local_executor.h"

#include <array>
#include <condition_variable>
#include <cstdint>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "core/base/check.h"
#include "runtime/runner/make_runner.h"

namespace fastllm::runtime {
namespace {

class LocalExecutor : public Executor {
 public:
  ~LocalExecutor() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (worker_.joinable()) worker_.join();
  }

  // The model is loaded on the worker thread: the team of the ops belongs to a thread.
  Status Start(ModelSource source, const RunnerOptions& options, PhaseSeconds* phases) {
    std::promise<Status> loaded;
    std::future<Status> status = loaded.get_future();
    worker_ = std::thread([this, source = std::move(source), &options, phases, loaded = std::move(loaded)]() mutable {
      auto runner = MakeStepRunner(std::move(source), options, phases);
      loaded.set_value(runner.status());
      // The starter goes on now, so `options` and `phases` are gone.
      if (runner.ok()) Loop(**runner);
    });
    return status.get();
  }

  void Submit(const StepPlan& plan) override {
    {
      const std::lock_guard lock(mutex_);
      FASTLLM_CHECK(submitted_ - taken_ < slots_.size(), "more plans in flight than the executor has places");
      slots_[submitted_++ % slots_.size()].plan = &plan;
    }
    changed_.notify_all();
  }

  void Wait(StepResult* result) override {
    std::unique_lock lock(mutex_);
    if (taken_ == submitted_) {
      *result = {};
      result->status = Status::FailedPrecondition("Wait() without a plan in flight");
      return;
    }
    changed_.wait(lock, [this] { return done_ > taken_; });
    PendingStep& step = slots_[taken_ % slots_.size()].step;
    lock.unlock();
    // Here, so that the worker can launch the next step meanwhile. The slot is the engine thread's until it is taken.
    step.Finish();
    std::swap(*result, step.result);
    lock.lock();
    ++taken_;
  }

 private:
  struct Slot {
    const StepPlan* plan = nullptr;
    PendingStep step;
  };

  void Loop(StepRunner& runner) {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || done_ < submitted_; });
      if (stop_) return;
      Slot& slot = slots_[done_ % slots_.size()];
      lock.unlock();
      runner.Launch(*slot.plan, &slot.step);
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  // Plan i is in slot i mod 2; plans are counted as they pass each station.
  std::array<Slot, 2> slots_;
  uint64_t submitted_ = 0;
  uint64_t done_ = 0;
  uint64_t taken_ = 0;
  bool stop_ = false;
  std::thread worker_;
};

}  // namespace

Result<std::unique_ptr<Executor>> MakeLocalExecutor(ModelSource source, const RunnerOptions& options,
                                                    PhaseSeconds* phases) {
  auto executor = std::make_unique<LocalExecutor>();
  FASTLLM_RETURN_IF_ERROR(executor->Start(std::move(source), options, phases));
  return std::unique_ptr<Executor>(std::move(executor));
}

}  // namespace fastllm::runtime
