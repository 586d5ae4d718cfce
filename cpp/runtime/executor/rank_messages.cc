#include "runtime/executor/rank_messages.h"

#include <cstring>
#include <utility>

#include "core/step/codec.h"
#include "core/step/wire.h"

namespace fastllm::runtime {
namespace {

// Both: a kind, the number of records behind it, the records, and a message of the codec, which has a checksum.
constexpr size_t kHeadBytes = 5;
constexpr size_t kSampledBytes = 20;

std::string Head(uint8_t kind, size_t count, size_t record_bytes) {
  std::string out(kHeadBytes + count * record_bytes, '\0');
  out[0] = static_cast<char>(kind);
  StoreLittle(&out[1], static_cast<uint32_t>(count));
  return out;
}

Status NoMessage(const char* what, size_t bytes) {
  return Status::DataLoss(std::string("no ") + what + ": " + std::to_string(bytes) + " bytes");
}

}  // namespace

std::string EncodeOrder(const std::vector<SampledId>& learned, const StepPlan& plan) {
  std::string out = Head(static_cast<uint8_t>(RankOrder::Kind::kStep), learned.size(), kSampledBytes);
  char* at = out.data() + kHeadBytes;
  for (const SampledId& id : learned) {
    StoreLittle(at, id.step_id);
    StoreLittle(at + 8, id.id);
    StoreLittle(at + 16, static_cast<uint32_t>(id.token));
    at += kSampledBytes;
  }
  return out += EncodeStepPlan(plan);
}

std::string EncodeEnd() { return Head(static_cast<uint8_t>(RankOrder::Kind::kEnd), 0, 0); }

Result<RankOrder> DecodeOrder(std::string_view bytes) {
  if (bytes.size() < kHeadBytes) return NoMessage("order to a rank", bytes.size());
  RankOrder order;
  order.kind = static_cast<RankOrder::Kind>(bytes[0]);
  if (order.kind == RankOrder::Kind::kEnd) return order;
  const size_t count = LoadLittle<uint32_t>(&bytes[1]);
  if (order.kind != RankOrder::Kind::kStep || count > (bytes.size() - kHeadBytes) / kSampledBytes) {
    return NoMessage("order to a rank", bytes.size());
  }
  for (size_t i = 0; i < count; ++i) {
    const char* at = &bytes[kHeadBytes + i * kSampledBytes];
    order.learned.push_back(
        {LoadLittle<uint64_t>(at), LoadLittle<uint64_t>(at + 8), static_cast<TokenId>(LoadLittle<uint32_t>(at + 16))});
  }
  FASTLLM_ASSIGN_OR_RETURN(order.plan, DecodeStepPlan(bytes.substr(kHeadBytes + count * kSampledBytes)));
  return order;
}

std::string EncodeReport(const RankReport& report) {
  // A phase: its seconds, and its name behind a count.
  std::string phases;
  for (const auto& [name, seconds] : report.phases) {
    char head[12];
    uint64_t bits = 0;
    std::memcpy(&bits, &seconds, sizeof(bits));
    StoreLittle(head, bits);
    StoreLittle(head + 8, static_cast<uint32_t>(name.size()));
    phases.append(head, sizeof(head)).append(name);
  }
  return Head(static_cast<uint8_t>(report.kind), phases.size(), 0) + phases + EncodeStepResult(report.result);
}

Result<RankReport> DecodeReport(std::string_view bytes) {
  if (bytes.size() < kHeadBytes) return NoMessage("report of a rank", bytes.size());
  RankReport report;
  report.kind = static_cast<RankReport::Kind>(bytes[0]);
  const size_t size = LoadLittle<uint32_t>(&bytes[1]);
  const bool known = report.kind == RankReport::Kind::kLoaded || report.kind == RankReport::Kind::kStep;
  if (!known || size > bytes.size() - kHeadBytes) return NoMessage("report of a rank", bytes.size());
  for (std::string_view left = bytes.substr(kHeadBytes, size); !left.empty();) {
    if (left.size() < 12) return NoMessage("report of a rank", bytes.size());
    const uint64_t bits = LoadLittle<uint64_t>(left.data());
    const size_t length = LoadLittle<uint32_t>(left.data() + 8);
    if (length > left.size() - 12) return NoMessage("report of a rank", bytes.size());
    double seconds = 0;
    std::memcpy(&seconds, &bits, sizeof(seconds));
    report.phases.emplace_back(std::string(left.substr(12, length)), seconds);
    left.remove_prefix(12 + length);
  }
  FASTLLM_ASSIGN_OR_RETURN(report.result, DecodeStepResult(bytes.substr(kHeadBytes + size)));
  return report;
}

}  // namespace fastllm::runtime
