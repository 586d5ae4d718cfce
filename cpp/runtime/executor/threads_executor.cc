#include "runtime/executor/threads_executor.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "runtime/executor/rank_threads.h"
#include "runtime/runner/make_runner.h"

namespace fastllm::runtime {
namespace {

// How long the executor's end waits for ranks after a failure before it leaves them behind.
constexpr std::chrono::seconds kFarewell{3};
// How long a device that is told not to wait for others may take to come to its end.
constexpr std::chrono::seconds kGrace{1};
// Orderly waits, of which each may take its time, between two signs of life of ranks that join: to meet, for first
// sums, and to find out who is missing.
constexpr int kJoinWaits = 3;
// Looks at the event that is waited for between looks at everything else.
constexpr uint64_t kLooksBetween = 1024;

class ThreadsExecutor : public Executor {
 public:
  ThreadsExecutor(std::shared_ptr<RankThreads> shared, const RankThreadsOptions& threads)
      : shared_(std::move(shared)),
        topology_{threads.sizes, 0},
        timeout_(threads.timeout),
        start_timeout_(threads.start_timeout()) {}

  ~ThreadsExecutor() override {
    std::unique_lock lock(shared_->mutex);
    shared_->stop = true;
    shared_->changed.notify_all();
    // Who has failed may not have got to tell the others yet.
    const Status why = shared_->failure.ok() ? Status::Unavailable("the executor ends") : shared_->failure;
    lock.unlock();
    // A rank may wait for one that has stopped before the same plan.
    shared_->Abort(why);
    lock.lock();
    const auto ended = [this] { return shared_->All(&RankThreads::Rank::ended); };
    // Healthy ranks come to the end of what they do; after a failure one of them may never.
    if (shared_->failure.ok()) {
      shared_->changed.wait(lock, ended);
    } else {
      shared_->changed.wait_for(lock, start_timeout_, [this] { return !shared_->AnyLoads(); });
      shared_->changed.wait_for(lock, kFarewell, ended);
    }
    for (size_t r = 0; r < threads_.size(); ++r) {
      if (!shared_->ranks[r].ended) threads_[r].detach();
    }
    lock.unlock();
    for (std::thread& t : threads_) {
      if (t.joinable()) t.join();
    }
  }

  Status Start(const ModelSource& source, const RunnerOptions& options, const RankRunnerFactory& make_runner,
               PhaseSeconds* phases) {
    const int32_t world = topology_.world();
    for (int32_t r = 0; r < world; ++r) {
      RunnerOptions own = options;
      own.ranks = shared_->hub->RanksOf(r);
      own.num_threads = std::max(1, options.num_threads / world);
      if (shared_->size_kv != nullptr) {
        own.size_kv = [shared = shared_.get()](const DeviceMemoryUse& use) { return shared->size_kv->Ask(use); };
      }
      threads_.emplace_back(
          [life = RankLife(shared_, make_runner, std::move(own)), source]() mutable { life.Run(std::move(source)); });
    }
    std::unique_lock lock(shared_->mutex);
    AwaitJoined(lock);
    shared_->changed.wait(lock, [this] { return !shared_->failure.ok() || shared_->All(&RankThreads::Rank::loaded); });
    if (!shared_->failure.ok()) return shared_->failure;
    shared_->hub->SetTimeout(timeout_);
    if (phases != nullptr) phases->insert(phases->end(), shared_->phases.begin(), shared_->phases.end());
    return Status::Ok();
  }

  void Submit(const StepPlan& plan) override {
    const std::lock_guard lock(shared_->mutex);
    FASTLLM_CHECK(shared_->submitted - taken_ < shared_->slots.size(),
                  "more plans in flight than the executor has places");
    RankThreads::Slot& slot = shared_->slots[shared_->submitted++ % shared_->slots.size()];
    slot.plan = plan;
    std::swap(slot.learned, learned_);
    learned_.clear();
    shared_->changed.notify_all();
  }

  void Wait(StepResult* result) override {
    std::unique_lock lock(shared_->mutex);
    if (taken_ == shared_->submitted) {
      *result = {};
      result->status = Status::FailedPrecondition("Wait() without a plan in flight");
      return;
    }
    AwaitOldest(lock);
    if (!shared_->failure.ok()) {
      *result = {};
      result->status = shared_->failure;
      return;
    }
    std::vector<PendingStep>& steps = shared_->slots[taken_ % shared_->slots.size()].steps;
    lock.unlock();
    PendingStep& step = steps[topology_.output_rank()];
    if (step.tokens != nullptr) AwaitDevices(steps);
    if (const Status failure = shared_->Failure(); !failure.ok()) {
      *result = {};
      result->status = failure;
      return;
    }
    step.Finish();
    std::swap(*result, step.result);
    if (topology_.sizes.pipeline > 1) {
      for (const SampledRow& row : result->rows) {
        for (const TokenId token : row.tokens) learned_.push_back({result->step_id, row.id, token});
      }
    }
    lock.lock();
    ++taken_;
  }

 private:
  // Until all ranks have joined, or something has failed. What they do meanwhile keeps the time itself; this is for
  // calls that do not come back.
  void AwaitJoined(std::unique_lock<std::mutex>& lock) {
    const auto settled = [this] { return !shared_->failure.ok() || shared_->All(&RankThreads::Rank::joined); };
    const std::chrono::milliseconds most = kJoinWaits * start_timeout_ + 2 * kGrace;
    for (;;) {
      const size_t before = shared_->JoinProgress();
      if (shared_->changed.wait_for(lock, most, settled)) return;
      if (shared_->JoinProgress() == before) break;
    }
    std::vector<int32_t> inside;
    for (int32_t r = 0; r < topology_.world(); ++r) {
      if (!shared_->ranks[r].joined) inside.push_back(r);
    }
    lock.unlock();
    BlameJoin(inside, most);
    lock.lock();
  }

  // Which of several that are inside a call hangs cannot be seen: all of them are named that the others may wait for.
  void BlameJoin(const std::vector<int32_t>& inside, std::chrono::milliseconds time) {
    std::set<int32_t> culprits;
    for (const int32_t r : inside) culprits.insert(shared_->hub->Culprit(r));
    std::string names;
    for (const int32_t r : culprits) {
      if (!names.empty()) names += r == *culprits.rbegin() ? " and " : ", ";
      names += RankTopology{topology_.sizes, r}.name();
    }
    shared_->Fail({topology_.sizes, *culprits.begin()},
                  Status(StatusCode::kDeadlineExceeded,
                         names + " did not join the other ranks within " + std::to_string(time.count()) + " ms"));
  }

  // Until all ranks have passed the oldest step, or something has failed.
  void AwaitOldest(std::unique_lock<std::mutex>& lock) {
    for (;;) {
      const uint64_t before = shared_->Progress();
      const auto passed = [this] { return !shared_->failure.ok() || shared_->NumDone() > taken_; };
      if (shared_->changed.wait_for(lock, timeout_, passed)) return;
      if (shared_->Progress() != before) continue;
      const auto slowest =
          std::ranges::min_element(shared_->ranks, {}, &RankThreads::Rank::done) - shared_->ranks.begin();
      lock.unlock();
      const RankTopology culprit{topology_.sizes, shared_->hub->Culprit(static_cast<int32_t>(slowest))};
      Status why(StatusCode::kDeadlineExceeded,
                 culprit.name() + " did not finish a step within " + std::to_string(timeout_.count()) + " ms");
      // A rank that has just given up waits for nobody any more; it knows better.
      if (const Status broken = shared_->hub->broken(); !broken.ok()) why = broken;
      shared_->Fail(culprit, why);
      lock.lock();
    }
  }

  // Until the device of the rank that gives the output is done with a step that all ranks have launched, or something
  // has failed.
  void AwaitDevices(const std::vector<PendingStep>& steps) {
    const auto until = std::chrono::steady_clock::now() + timeout_;
    for (uint64_t looks = 1; !IsDone(steps, topology_.output_rank()); ++looks) {
      if (looks % kLooksBetween != 0) continue;
      if (!shared_->Failure().ok()) return;
      for (int32_t r = 0; r < topology_.world(); ++r) IsDone(steps, r);  // one that has broken down says so
      if (std::chrono::steady_clock::now() > until) return BlameDevice(steps);
    }
  }

  // A device that has broken down fails the executor with its rank's name, and is done.
  bool IsDone(const std::vector<PendingStep>& steps, int32_t rank) {
    const PendingStep& step = steps[rank];
    try {
      return step.tokens == nullptr || step.device->IsDone(step.event);
    } catch (const std::exception& e) {
      shared_->Fail({topology_.sizes, rank}, Status::Internal(std::string("step failed: ") + e.what()));
      return true;
    }
  }

  // Devices that only wait for others come to an end when they are told not to wait any more; the one that hangs does
  // not.
  void BlameDevice(const std::vector<PendingStep>& steps) {
    const std::string late = "did not finish a step on its device within " + std::to_string(timeout_.count()) + " ms";
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->judge = std::this_thread::get_id();
    }
    shared_->AbortDevices(Status(StatusCode::kDeadlineExceeded, "a rank " + late));
    const auto until = std::chrono::steady_clock::now() + kGrace;
    int32_t culprit = 0;
    do {
      for (culprit = 0; culprit < topology_.world() && IsDone(steps, culprit);) ++culprit;
    } while (culprit < topology_.world() && std::chrono::steady_clock::now() < until);
    const bool found = culprit < topology_.world();
    const RankTopology blamed{topology_.sizes, found ? culprit : topology_.output_rank()};
    shared_->Fail(blamed, Status(StatusCode::kDeadlineExceeded, blamed.name() + " " + late));
    const std::lock_guard lock(shared_->mutex);
    shared_->judge = {};
    shared_->changed.notify_all();
  }

  std::shared_ptr<RankThreads> shared_;
  RankTopology topology_;
  std::chrono::milliseconds timeout_;
  std::chrono::milliseconds start_timeout_;
  std::vector<std::thread> threads_;
  std::vector<SampledId> learned_;  // since the last plan
  uint64_t taken_ = 0;
};

}  // namespace

Result<std::unique_ptr<Executor>> MakeThreadsExecutor(ModelSource source, const RunnerOptions& options,
                                                      const RankThreadsOptions& threads, PhaseSeconds* phases) {
  FASTLLM_ASSIGN_OR_RETURN(auto hub, MemoryHub::Create(threads.sizes, threads.start_timeout()));
  auto shared = std::make_shared<RankThreads>(std::move(hub), static_cast<size_t>(threads.sizes.pipeline) + 1,
                                              threads.sizes.world());
  shared->join = threads.join;
  if (options.size_kv) shared->size_kv = std::make_unique<SizeKvOnce>(threads.sizes.world(), options.size_kv);
  RankRunnerFactory make_runner = threads.make_runner;
  if (!make_runner) {
    make_runner = [](ModelSource own, const RunnerOptions& o, PhaseSeconds* p) {
      return MakeStepRunner(std::move(own), o, p);
    };
  }
  auto executor = std::make_unique<ThreadsExecutor>(std::move(shared), threads);
  FASTLLM_RETURN_IF_ERROR(executor->Start(source, options, make_runner, phases));
  return std::unique_ptr<Executor>(std::move(executor));
}

}  // namespace fastllm::runtime
