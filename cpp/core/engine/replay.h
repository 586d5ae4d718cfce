// Replay: runs a recording of an engine (recorder.h) through a scheduler of this build, without a model.
#pragma once

#include <cstdint>
#include <string>

#include "fastllm/status.h"

namespace fastllm {

struct ReplayReport {
  int64_t requests = 0;
  int64_t steps = 0;       // plans with rows, each the same in every byte
  int64_t plan_bytes = 0;  // of these
  int64_t tokens = 0;      // scheduled
  bool full = false;       // the recording stopped at its size limit
  bool cut = false;        // the recording ends inside a frame: the process ended there
  std::string failure;     // the status of the result that ended the engine, if one did
};

// kNotFound when there is no such file; kDataLoss for a file that is no recording, or damaged; kUnimplemented, with
// both versions, for a recording of another version; kInternal, with the step and the first byte, when a plan differs
// from the recorded one, or when the scheduler itself fails.
Result<ReplayReport> Replay(const std::string& path);

}  // namespace fastllm
