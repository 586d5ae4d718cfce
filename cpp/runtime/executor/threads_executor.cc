#include "runtime/executor/threads_executor.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "runtime/comm/memory_hub.h"
#include "runtime/executor/size_kv_once.h"
#include "runtime/runner/make_runner.h"

namespace fastllm::runtime {
namespace {

// How long the executor's end waits for ranks after a failure before it leaves them behind.
constexpr std::chrono::seconds kFarewell{3};
// How long a device that is told not to wait for others may take to come to its end.
constexpr std::chrono::seconds kGrace{1};
// Looks at the event that is waited for between looks at everything else.
constexpr uint64_t kLooksBetween = 1024;

// Everything that the threads use, so that one which never comes back finds it still there.
struct Shared {
  // A plan on its way through the ranks: plan i is in slot i mod their number.
  struct Slot {
    StepPlan plan;
    std::vector<SampledId> learned;  // by the stages that do not sample, before this plan
    std::vector<PendingStep> steps;  // of each rank
  };
  struct Rank {
    uint64_t done = 0;  // plans that it has launched
    bool loaded = false;
    bool ended = false;
  };

  explicit Shared(std::unique_ptr<MemoryHub> hub_of_all, size_t num_slots, int32_t world)
      : hub(std::move(hub_of_all)), slots(num_slots), ranks(world) {
    for (Slot& slot : slots) slot.steps.resize(world);
  }

  Status Failure() {
    const std::lock_guard lock(mutex);
    return failure;
  }
  // Mutex held.
  uint64_t NumDone() const { return std::ranges::min_element(ranks, {}, &Rank::done)->done; }
  uint64_t Progress() const {
    uint64_t sum = 0;
    for (const Rank& r : ranks) sum += r.done;
    return sum;
  }
  bool All(bool Rank::*flag) const {
    return std::ranges::all_of(ranks, [flag](const Rank& r) { return r.*flag; });
  }

  // The first failure stays, and wakes everybody.
  void Fail(const RankTopology& topology, const Status& why) {
    Status named = why;
    if (!why.message().starts_with("rank ")) named = Status(why.code(), topology.name() + ": " + why.message());
    {
      std::unique_lock lock(mutex);
      // What ranks say of an abort while it is looked for the one to blame is not to be heard.
      changed.wait(lock, [this] { return judge == std::thread::id() || judge == std::this_thread::get_id(); });
      if (failure.ok()) failure = named;
      named = failure;
    }
    if (size_kv != nullptr) size_kv->Break(named);
    Abort(named);
    changed.notify_all();
  }

  // Ends the waits of ranks for each other.
  void Abort(const Status& why) {
    hub->Abort(why);
    AbortDevices(why);
  }
  void AbortDevices(const Status& why) {
    std::vector<std::shared_ptr<Communicator>> own;
    {
      const std::lock_guard lock(mutex);
      aborted = why;
      own = joined;
    }
    for (const auto& communicator : own) communicator->Abort(why);
  }

  // On a rank's thread.
  Status Join(Ranks* ranks) {
    if (!join) return Status::Ok();
    ranks->host = ranks->tensor;
    FASTLLM_RETURN_IF_ERROR(join(ranks));
    Status why;
    {
      const std::lock_guard lock(mutex);
      for (const auto& communicator : {ranks->tensor, ranks->pipeline}) {
        if (communicator != nullptr) joined.push_back(communicator);
      }
      why = aborted;
    }
    if (!why.ok()) Abort(why);  // which has not met these
    return why;
  }

  std::unique_ptr<MemoryHub> hub;
  std::unique_ptr<SizeKvOnce> size_kv;
  std::function<Status(Ranks*)> join;
  std::vector<std::shared_ptr<Communicator>> joined;
  Status aborted;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Slot> slots;
  std::vector<Rank> ranks;
  uint64_t submitted = 0;
  Status failure;
  std::thread::id judge;  // the thread that looks for the rank to blame, if one does
  bool stop = false;
};

// The life of one rank, on its thread.
class RankLife {
 public:
  RankLife(std::shared_ptr<Shared> shared, RankRunnerFactory make_runner, RunnerOptions options)
      : shared_(std::move(shared)), make_runner_(std::move(make_runner)), options_(std::move(options)) {}

  void Run(ModelSource source, PhaseSeconds* phases) {
    try {
      Live(std::move(source), phases);
    } catch (const std::exception& e) {
      shared_->Fail(topology(), Status::Internal(e.what()));
    } catch (...) {
      shared_->Fail(topology(), Status::Internal("an exception of unknown type"));
    }
    const std::lock_guard lock(shared_->mutex);
    own().loaded = own().ended = true;
    shared_->changed.notify_all();
  }

 private:
  const RankTopology& topology() const { return options_.ranks.topology; }
  Shared::Rank& own() const { return shared_->ranks[topology().rank]; }

  void Live(ModelSource source, PhaseSeconds* phases) {
    if (const Status status = shared_->Join(&options_.ranks); !status.ok()) return shared_->Fail(topology(), status);
    auto runner = make_runner_(std::move(source), options_, phases);
    if (!runner.ok()) return shared_->Fail(topology(), runner.status());
    {
      const std::lock_guard lock(shared_->mutex);
      own().loaded = true;
      shared_->changed.notify_all();
    }
    Loop(**runner);
  }

  void Loop(StepRunner& runner) {
    std::unique_lock lock(shared_->mutex);
    for (;;) {
      shared_->changed.wait(
          lock, [this] { return shared_->stop || !shared_->failure.ok() || own().done < shared_->submitted; });
      if (shared_->stop || !shared_->failure.ok()) return;
      Shared::Slot& slot = shared_->slots[own().done % shared_->slots.size()];
      lock.unlock();
      PendingStep& step = slot.steps[topology().rank];
      if (!topology().last_stage() && !slot.learned.empty()) runner.Learn(slot.learned);
      runner.Launch(slot.plan, &step);
      if (!step.result.status.ok()) return shared_->Fail(topology(), step.result.status);
      lock.lock();
      ++own().done;
      shared_->changed.notify_all();
    }
  }

  std::shared_ptr<Shared> shared_;
  RankRunnerFactory make_runner_;
  RunnerOptions options_;
};

class ThreadsExecutor : public Executor {
 public:
  ThreadsExecutor(std::shared_ptr<Shared> shared, const RankThreadsOptions& threads)
      : shared_(std::move(shared)), topology_{threads.sizes, 0}, timeout_(threads.timeout) {}

  ~ThreadsExecutor() override {
    std::unique_lock lock(shared_->mutex);
    shared_->stop = true;
    shared_->changed.notify_all();
    lock.unlock();
    // A rank may wait for one that has stopped before the same plan.
    shared_->Abort(Status::Unavailable("the executor ends"));
    lock.lock();
    const auto ended = [this] { return shared_->All(&Shared::Rank::ended); };
    // Healthy ranks come to the end of what they do; after a failure one of them may never.
    if (shared_->failure.ok()) {
      shared_->changed.wait(lock, ended);
    } else {
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
          [life = RankLife(shared_, make_runner, std::move(own)), source,
           own_phases = r == 0 ? phases : nullptr]() mutable { life.Run(std::move(source), own_phases); });
    }
    std::unique_lock lock(shared_->mutex);
    shared_->changed.wait(lock, [this] { return shared_->All(&Shared::Rank::loaded); });
    return shared_->failure;
  }

  void Submit(const StepPlan& plan) override {
    const std::lock_guard lock(shared_->mutex);
    FASTLLM_CHECK(shared_->submitted - taken_ < shared_->slots.size(),
                  "more plans in flight than the executor has places");
    Shared::Slot& slot = shared_->slots[shared_->submitted++ % shared_->slots.size()];
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
  // Until all ranks have passed the oldest step, or something has failed.
  void AwaitOldest(std::unique_lock<std::mutex>& lock) {
    for (;;) {
      const uint64_t before = shared_->Progress();
      const auto passed = [this] { return !shared_->failure.ok() || shared_->NumDone() > taken_; };
      if (shared_->changed.wait_for(lock, timeout_, passed)) return;
      if (shared_->Progress() != before) continue;
      const auto slowest = std::ranges::min_element(shared_->ranks, {}, &Shared::Rank::done) - shared_->ranks.begin();
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

  std::shared_ptr<Shared> shared_;
  RankTopology topology_;
  std::chrono::milliseconds timeout_;
  std::vector<std::thread> threads_;
  std::vector<SampledId> learned_;  // since the last plan
  uint64_t taken_ = 0;
};

}  // namespace

Result<std::unique_ptr<Executor>> MakeThreadsExecutor(ModelSource source, const RunnerOptions& options,
                                                      const RankThreadsOptions& threads, PhaseSeconds* phases) {
  FASTLLM_ASSIGN_OR_RETURN(auto hub, MemoryHub::Create(threads.sizes, threads.timeout));
  auto shared =
      std::make_shared<Shared>(std::move(hub), static_cast<size_t>(threads.sizes.pipeline) + 1, threads.sizes.world());
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
