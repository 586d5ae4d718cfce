#include "runtime/runner/token_tallies.h"

#include <algorithm>
#include <exception>

#include "runtime/sample/sample_rule.h"
#include "runtime/tensor/tensors.h"

namespace fastllm::runtime {
namespace {

constexpr int32_t kMostIds = 1 << 16;  // that travel together
constexpr int32_t kMostSegments = 1024;
constexpr size_t kIdsOffset = kMostSegments * sizeof(ops::CountSegment);
constexpr size_t kBufferBytes = kIdsOffset + kMostIds * sizeof(int32_t);

int64_t CountBytes(const BatchState& batch) {
  return int64_t{batch.num_slots()} * batch.limits().vocab_size * static_cast<int64_t>(sizeof(ops::TokenTally));
}

}  // namespace

int64_t TokenTallies::DeviceBytes(const BatchState& batch) {
  return CountBytes(batch) + static_cast<int64_t>(kBufferBytes);
}

std::unique_ptr<TokenTallies> TokenTallies::Create(const ops::DeviceApi& device, ops::CountTokensFn count,
                                                   const BatchState& batch, const Placement& placement) {
  std::unique_ptr<TokenTallies> t(new TokenTallies(device, count));
  const auto bytes = placement.Options(at::kByte);
  try {
    t->counts_ = Empty({CountBytes(batch)}, bytes);
    t->stage_ = Empty({static_cast<int64_t>(kBufferBytes)}, bytes);
    for (char*& b : t->buffers_) b = static_cast<char*>(device.AllocatePinned(kBufferBytes));
  } catch (const std::exception&) {
    return nullptr;  // such rows are sampled on the host
  }
  return t;
}

TokenTallies::~TokenTallies() {
  for (char* b : buffers_) {
    if (b != nullptr) device_.FreePinned(b);
  }
}

void TokenTallies::Send(const BatchLimits& limits, int32_t num_rows, const Pending& pending, char* buffer,
                        const ops::OpContext& op) const {
  device_.Copy(stage_.data_ptr(), buffer, kIdsOffset + pending.ids * sizeof(int32_t), op.stream);
  const char* const stage = static_cast<const char*>(stage_.data_ptr());
  ops::CountTokensParams p;
  p.counts = counts();
  p.segments = reinterpret_cast<const ops::CountSegment*>(stage);
  p.ids = reinterpret_cast<const int32_t*>(stage + kIdsOffset);
  p.num_segments = pending.segments;
  p.num_count_rows = num_rows;
  p.vocab = limits.vocab_size;
  count_(p, op);
}

void TokenTallies::Rehearse(const BatchState& batch, const ops::OpContext& op) {
  char* const host = buffers_[0];
  reinterpret_cast<ops::CountSegment*>(host)[0] = {0, 0, 0, 0, true};
  Send(batch.limits(), batch.num_slots(), {1, 0}, host, op);
  device_.Synchronize(op.stream);
}

void TokenTallies::Update(const BatchState& batch, const DeviceSampling& device, int buffer, const ops::OpContext& op) {
  char* const host = buffers_[buffer];
  auto* const segments = reinterpret_cast<ops::CountSegment*>(host);
  auto* const ids = reinterpret_cast<int32_t*>(host + kIdsOffset);
  Pending pending;
  for (const BatchRow& row : batch.rows()) {
    RunnerSequence& s = *row.sequence;
    if (!row.sample || !HasPenalties(s.sampling) || !DeviceCanSample(s.sampling, device)) continue;
    const auto known = static_cast<int64_t>(s.tokens.size());
    while (s.tallied < known) {
      if (pending.ids == kMostIds || pending.segments == kMostSegments) {
        Send(batch.limits(), batch.num_slots(), pending, host, op);
        device_.Synchronize(op.stream);  // before the buffer is written again
        pending = {};
      }
      const auto n = static_cast<int32_t>(std::min<int64_t>(known - s.tallied, kMostIds - pending.ids));
      std::copy_n(s.tokens.data() + s.tallied, n, ids + pending.ids);
      const int64_t prompt = std::clamp<int64_t>(s.num_prompt_tokens - s.tallied, 0, n);
      segments[pending.segments++] = {s.slot, pending.ids, pending.ids + n, static_cast<int32_t>(prompt),
                                      s.tallied == 0};
      pending.ids += n;
      s.tallied += n;
    }
    s.tallied = known + 1;  // the step counts what it samples
  }
  if (pending.segments > 0) Send(batch.limits(), batch.num_slots(), pending, host, op);
}

}  // namespace fastllm::runtime
