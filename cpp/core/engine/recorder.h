// Recorder: writes what goes into the scheduler, and the plans that come out, to a file for Replay() (replay.h).
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/ids.h"
#include "core/config/resolved.h"
#include "core/engine/recording.h"
#include "core/request/request.h"
#include "core/step/step_plan.h"
#include "core/step/step_result.h"
#include "fastllm/status.h"

namespace fastllm {

// Engine thread only, in the order of the calls. A plan is with the operating system before the executor gets it, so a
// crash of the process loses nothing that led to it. At `max_bytes`, and after a failed write, recording ends and the
// engine goes on; what was written up to there can be replayed.
class Recorder {
 public:
  // Overwrites the file. kInvalidArgument when it cannot be written or max_bytes has no room for the configuration.
  static Result<std::unique_ptr<Recorder>> Open(const std::string& path, int64_t max_bytes, const SchedConfig& sched,
                                                const KvConfig& kv);

  // The scheduler's clock, in milliseconds, at all calls from here on.
  void OnTime(int64_t now_ms);
  void OnAdd(const Request& request);
  void OnFinish(RequestId id);
  void OnPlan(const StepPlan& plan);
  void OnResult(const StepResult& result);
  void OnResetPrefixCache();
  void OnPin(const PrefixQuery& prefix);

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  Recorder(std::FILE* file, int64_t max_bytes) : file_(file), left_(max_bytes) {}
  void Frame(FrameKind kind, std::string_view payload);
  void Write(std::string_view bytes);

  std::unique_ptr<std::FILE, CloseFile> file_;  // null: ended
  int64_t left_;                                // bytes
  int64_t now_ms_ = -1;                         // that was written last
};

}  // namespace fastllm
