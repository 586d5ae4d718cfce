#include "core/engine/replay.h"

#include <algorithm>
#include <deque>
#include <fstream>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/check.h"
#include "core/engine/recording.h"
#include "core/sched/scheduler.h"
#include "core/step/codec.h"

namespace fastllm {
namespace {

template <typename... T>
Status Decode(std::string_view payload, T*... fields) {
  WireReader reader(payload);
  (reader.Field(*fields), ...);
  if (reader.ok() && reader.at_end()) return Status::Ok();
  return Status::DataLoss("a frame does not have the fields of its kind");
}

class Replayer {
 public:
  // Frames in order; kConfig first.
  Status Frame(FrameKind kind, std::string_view payload) {
    if ((kind == FrameKind::kConfig) == (scheduler_ != nullptr)) {
      return Status::DataLoss("the configuration is not the first frame, or is there twice");
    }
    switch (kind) {
      case FrameKind::kConfig: return OnConfig(payload);
      case FrameKind::kAdd: return OnAdd(payload);
      case FrameKind::kFinish: {
        RequestId id = 0;
        FASTLLM_RETURN_IF_ERROR(Decode(payload, &id));
        scheduler_->Finish(id);
        return Status::Ok();
      }
      case FrameKind::kPlan: return OnPlan(payload);
      case FrameKind::kResult: return OnResult(payload);
      case FrameKind::kResetPrefixCache: scheduler_->ResetPrefixCache(); return Status::Ok();
      case FrameKind::kFull: report_.full = true; return Status::Ok();
      case FrameKind::kTime: return Decode(payload, &now_ms_);
      case FrameKind::kPin: {
        PrefixQuery prefix;
        FASTLLM_RETURN_IF_ERROR(Decode(payload, &prefix));
        return scheduler_->PinPrefix(prefix.tokens, prefix.keys, prefix.priority, prefix.ttl_ms).status();
      }
    }
    return Status::DataLoss("a frame of kind " + std::to_string(static_cast<int>(kind)));
  }

  ReplayReport* report() { return &report_; }

 private:
  Status OnConfig(std::string_view payload) {
    SchedConfig sched;
    KvConfig kv;
    FASTLLM_RETURN_IF_ERROR(Decode(payload, &sched, &kv));
    scheduler_ = std::make_unique<Scheduler>(sched, kv, [this] { return now_ms_; });
    return Status::Ok();
  }

  Status OnAdd(std::string_view payload) {
    auto request = std::make_shared<Request>();
    FASTLLM_RETURN_IF_ERROR(Decode(payload, request.get()));
    ++report_.requests;
    // One that the scheduler refused is in the recording too, and is refused again.
    (void)scheduler_->Add(std::move(request));
    return Status::Ok();
  }

  Status OnPlan(std::string_view recorded) {
    StepPlan plan = scheduler_->Schedule();
    const std::string bytes = EncodeStepPlan(plan);
    if (bytes != recorded) {
      const auto at = std::mismatch(bytes.begin(), bytes.end(), recorded.begin(), recorded.end()).first - bytes.begin();
      return Status::Internal("the plan after step " + std::to_string(report_.steps) + " differs from byte " +
                              std::to_string(at) + " on: " + std::to_string(bytes.size()) + " bytes, " +
                              std::to_string(recorded.size()) + " were recorded");
    }
    if (plan.rows.empty()) return Status::Ok();
    ++report_.steps;
    report_.plan_bytes += static_cast<int64_t>(bytes.size());
    report_.tokens += plan.total_tokens;
    in_flight_.push_back(std::move(plan));
    return Status::Ok();
  }

  Status OnResult(std::string_view payload) {
    FASTLLM_ASSIGN_OR_RETURN(const StepResult result, DecodeStepResult(payload));
    if (in_flight_.empty()) return Status::DataLoss("a result without a plan");
    if (!result.status.ok()) {
      report_.failure = result.status.ToString();
    } else {
      scheduler_->Update(in_flight_.front(), result);
    }
    in_flight_.pop_front();
    return Status::Ok();
  }

  std::unique_ptr<Scheduler> scheduler_;
  std::deque<StepPlan> in_flight_;
  int64_t now_ms_ = 0;
  ReplayReport report_;
};

// The next `count` bytes; empty when the file has fewer.
std::optional<std::string> Read(std::ifstream* file, size_t count, uint64_t left) {
  if (count > left) return std::nullopt;
  std::string bytes(count, '\0');
  if (!file->read(bytes.data(), static_cast<std::streamsize>(count))) return std::nullopt;
  return bytes;
}

Status CheckHeader(const std::string& path, const std::optional<std::string>& header) {
  if (!header || !header->starts_with(kRecordingMagic)) {
    return Status::DataLoss(path + " is no recording of an engine");
  }
  const int version = static_cast<uint8_t>(header->back());
  if (version == kRecordingVersion) return Status::Ok();
  return Status::Unimplemented(path + " is a recording of version " + std::to_string(version) +
                               ", this build reads version " + std::to_string(kRecordingVersion) +
                               ": replay it with the build that wrote it");
}

}  // namespace

Result<ReplayReport> Replay(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return Status::NotFound("cannot read the recording " + path);
  const auto size = static_cast<uint64_t>(file.tellg());
  file.seekg(0);
  uint64_t at = kRecordingHeaderBytes;
  FASTLLM_RETURN_IF_ERROR(CheckHeader(path, Read(&file, kRecordingHeaderBytes, size)));
  Replayer replayer;
  while (at < size) {
    const auto header = Read(&file, kFrameHeaderBytes, size - at);
    const size_t count = header ? LoadLittle<uint32_t>(header->data() + 1) : 0;
    const auto payload = header ? Read(&file, count, size - at - kFrameHeaderBytes) : std::nullopt;
    if (!payload) {
      replayer.report()->cut = true;
      break;
    }
    Status status;
    try {
      status = replayer.Frame(static_cast<FrameKind>((*header)[0]), *payload);
    } catch (const InternalError& e) {
      status = Status::Internal(std::string("the scheduler failed: ") + e.what());
    }
    if (!status.ok()) return Status(status.code(), path + ", byte " + std::to_string(at) + ": " + status.message());
    at += kFrameHeaderBytes + count;
  }
  return std::move(*replayer.report());
}

}  // namespace fastllm
