// EngineLoop: the body of the engine thread. Owns scheduler, executor and text state; nobody else touches them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/engine/channels.h"
#include "core/engine/executor.h"
#include "core/engine/output_router.h"
#include "core/engine/recorder.h"
#include "core/sched/scheduler.h"

namespace fastllm {

// Submitting a step and taking its result are apart: while one step runs, the result of the one before is applied and
// the next is planned and handed over. How many may be in flight is the scheduler's to say.
class EngineLoop {
 public:
  // The channels outlive the loop. `recorder` may be null.
  EngineLoop(const SchedConfig& sched, const KvConfig& kv, std::unique_ptr<Executor> executor,
             std::shared_ptr<const TokenTable> tokens, std::unique_ptr<Recorder> recorder, EngineChannels* channels);

  // Returns when the inbox is closed, or after a failure that has poisoned the engine; never throws. By then every
  // request that was accepted has its last delta in the outbox, every control its answer, and the outbox is closed.
  void Run() noexcept;

  // For one reader thread; lives as long as the loop. Null when KV events are off.
  KvEventRing* kv_events() const { return scheduler_.kv_events(); }

 private:
  using Clock = std::chrono::steady_clock;

  enum class Admission : uint8_t {
    kOpen,    // requests go to the scheduler as they come
    kHold,    // new ones are held; the scheduler's go on
    kFreeze,  // nothing is planned
    kAsleep,  // as kFreeze, and the executor has given its memory back
  };
  struct Step {
    StepPlan plan;  // the executor's until its result is there
    Clock::time_point submitted;
  };
  // The steps in flight, oldest first, and what a step needs besides; all of it is used again.
  struct Pipeline {
    explicit Pipeline(size_t depth) : steps(depth) {}

    std::vector<Step> steps;
    size_t oldest = 0;
    size_t size = 0;
    StepResult result;
    std::vector<SequenceUpdate> updates;

    Step& at(size_t i) { return steps[(oldest + i) % steps.size()]; }
  };
  // Came while the engine was paused.
  struct Held {
    std::vector<std::shared_ptr<const Request>> requests;  // in order
    int64_t num_tokens = 0;
  };
  // Controls on their way to an answer.
  struct Controls {
    std::vector<Control> quiet;  // kPause and kDrain that wait for the engine to be quiet
    std::vector<std::pair<Control, Result<int32_t>>> answered;  // told when the statistics are out
    bool handled = false;                                       // the statistics are due
  };

  void Loop();
  bool DrainInbox();  // false: the inbox is closed
  void Schedule(const std::shared_ptr<const Request>& request);
  bool SubmitStep();                                        // false: there is nothing to run
  void CompleteStep();                                      // waits for the oldest step in flight
  void Apply(const StepPlan& plan, Clock::time_point now);  // pipeline_.result
  void Forget(RequestId id);
  void Publish();
  void ReportQueue();
  void SetTime(Clock::time_point now);  // the scheduler's, until the next call
  void Poison(const std::string& why) noexcept;

  // engine_lifecycle.cc
  bool Quiet() const;  // nothing runs, and nothing would without news from outside
  bool Planning() const { return admission_ == Admission::kOpen || admission_ == Admission::kHold; }
  void Handle(Control control);
  void Pause(Control control);
  Status Resume();
  Status Sleep(int32_t level);
  Status Wake(const std::vector<std::string>& tags);
  Status ResetPrefixCache();
  Result<int32_t> Pin(const PrefixQuery& prefix);
  void Answer();  // the controls that can be answered
  void AnswerAll(const Status& status);

  int64_t now_ms_ = 0;  // the scheduler's clock: read once for all that happens at one time, so that it can be replayed
  Scheduler scheduler_;
  std::unique_ptr<Executor> executor_;
  OutputRouter router_;
  std::unique_ptr<Recorder> recorder_;
  Pipeline pipeline_;
  Admission admission_ = Admission::kOpen;
  Held held_;
  Controls controls_;
  EngineStats totals_;  // what the scheduler does not count
  Clock::time_point last_completed_;
  EngineChannels* channels_;
};

}  // namespace fastllm
