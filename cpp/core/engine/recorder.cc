#include "core/engine/recorder.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include "core/step/codec.h"

namespace fastllm {
namespace {

template <typename... T>
std::string Encode(const T&... fields) {
  WireWriter writer;
  (writer.Field(fields), ...);
  return std::move(writer).Take();
}

}  // namespace

Result<std::unique_ptr<Recorder>> Recorder::Open(const std::string& path, int64_t max_bytes, const SchedConfig& sched,
                                                 const KvConfig& kv) {
  std::FILE* file = std::fopen(path.c_str(), "wbe");
  if (file == nullptr) {
    return Status::InvalidArgument("cannot write the recording " + path + ": " +
                                   std::generic_category().message(errno));
  }
  std::unique_ptr<Recorder> recorder(new Recorder(file, max_bytes));
  recorder->Write(kRecordingMagic);
  recorder->Write(std::string_view(reinterpret_cast<const char*>(&kRecordingVersion), 1));
  recorder->Frame(FrameKind::kConfig, Encode(sched, kv));
  if (recorder->file_ == nullptr || std::fflush(file) != 0) {
    return Status::InvalidArgument("the recording " + path + " has no room for its first frame in " +
                                   std::to_string(max_bytes) + " bytes");
  }
  return recorder;
}

void Recorder::OnTime(int64_t now_ms) {
  if (std::exchange(now_ms_, now_ms) != now_ms) Frame(FrameKind::kTime, Encode(now_ms));
}

void Recorder::OnAdd(const Request& request) { Frame(FrameKind::kAdd, Encode(request)); }

void Recorder::OnFinish(RequestId id) { Frame(FrameKind::kFinish, Encode(id)); }

void Recorder::OnPlan(const StepPlan& plan) {
  Frame(FrameKind::kPlan, EncodeStepPlan(plan));
  if (file_ != nullptr && std::fflush(file_.get()) != 0) file_.reset();
}

void Recorder::OnResult(const StepResult& result) { Frame(FrameKind::kResult, EncodeStepResult(result)); }

void Recorder::OnResetPrefixCache() { Frame(FrameKind::kResetPrefixCache, {}); }

void Recorder::OnPin(const PrefixQuery& prefix) { Frame(FrameKind::kPin, Encode(prefix)); }

void Recorder::Frame(FrameKind kind, std::string_view payload) {
  if (file_ == nullptr) return;
  char header[kFrameHeaderBytes];
  header[0] = static_cast<char>(kind);
  StoreLittle(header + 1, static_cast<uint32_t>(payload.size()));
  // The last frame has its room from the beginning.
  if (static_cast<int64_t>(payload.size() + 2 * kFrameHeaderBytes) > left_) {
    const char full[kFrameHeaderBytes] = {static_cast<char>(FrameKind::kFull)};
    Write({full, kFrameHeaderBytes});
    file_.reset();
    return;
  }
  Write({header, kFrameHeaderBytes});
  Write(payload);
}

void Recorder::Write(std::string_view bytes) {
  // An empty view may hold a null pointer, which fwrite must not get.
  if (file_ == nullptr || bytes.empty()) return;
  left_ -= static_cast<int64_t>(bytes.size());
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) file_.reset();
}

}  // namespace fastllm
