#include "runtime/executor/local_executor.h"

#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

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

  // The model is loaded on the worker thread: torch's thread settings belong to a thread, and so does its OpenMP team.
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

  void Submit(StepPlan plan) override {
    {
      const std::lock_guard lock(mutex_);
      plans_.push_back(std::move(plan));
      ++in_flight_;
    }
    changed_.notify_all();
  }

  StepResult Wait() override {
    std::unique_lock lock(mutex_);
    if (in_flight_ == 0) {
      StepResult result;
      result.status = Status::FailedPrecondition("Wait() without a plan in flight");
      return result;
    }
    changed_.wait(lock, [this] { return !results_.empty(); });
    PendingStep step = std::move(results_.front());
    results_.pop_front();
    --in_flight_;
    lock.unlock();
    return step.Finish();  // here, so that the worker can launch the next step meanwhile
  }

 private:
  void Loop(StepRunner& runner) {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || !plans_.empty(); });
      if (stop_) return;
      const StepPlan plan = std::move(plans_.front());
      plans_.pop_front();
      lock.unlock();
      PendingStep step = runner.Launch(plan);
      lock.lock();
      results_.push_back(std::move(step));
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<StepPlan> plans_;
  std::deque<PendingStep> results_;
  int32_t in_flight_ = 0;  // submitted and not yet handed out by Wait()
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
