#include "fastllm/status.h"

#include "fastllm/output.h"
#include "fastllm/replica.h"

namespace fastllm {

const char* StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid_argument";
    case StatusCode::kNotFound: return "not_found";
    case StatusCode::kDataLoss: return "data_loss";
    case StatusCode::kUnimplemented: return "unimplemented";
    case StatusCode::kResourceExhausted: return "resource_exhausted";
    case StatusCode::kFailedPrecondition: return "failed_precondition";
    case StatusCode::kUnavailable: return "unavailable";
    case StatusCode::kInternal: return "internal";
    case StatusCode::kDeadlineExceeded: return "deadline_exceeded";
  }
  return "unknown";
}

std::string Status::ToString() const { return ok() ? "ok" : std::string(StatusCodeName(code_)) + ": " + message_; }

const char* ReplicaStateName(ReplicaState state) {
  switch (state) {
    case ReplicaState::kServing: return "serving";
    case ReplicaState::kDraining: return "draining";
    case ReplicaState::kDrained: return "drained";
    case ReplicaState::kFailed: return "failed";
    case ReplicaState::kRestarting: return "restarting";
  }
  return "";
}

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone: return "";
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kAbort: return "abort";
    case FinishReason::kError: return "error";
  }
  return "";
}

}  // namespace fastllm
