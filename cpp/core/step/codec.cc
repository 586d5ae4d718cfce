#include "core/step/codec.h"

#include <bit>
#include <type_traits>
#include <vector>

namespace fastllm {
namespace {

constexpr uint32_t kMagic = 0x504C4C46;  // "FLLP"
enum class Kind : uint16_t { kPlan = 1, kResult = 2 };

template <typename T>
void StoreLittle(char* to, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<char>(value >> (8 * i));
}

template <typename T>
T LoadLittle(const char* from) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(static_cast<unsigned char>(from[i])) << (8 * i)));
  }
  return value;
}

class Writer {
 public:
  Writer() : out_(kStepHeaderBytes, '\0') {}

  void Field(bool v) { out_.push_back(v ? 1 : 0); }
  void Field(float v) { Put(std::bit_cast<uint32_t>(v)); }
  void Field(int32_t v) { Put(static_cast<uint32_t>(v)); }
  void Field(uint32_t v) { Put(v); }
  void Field(uint64_t v) { Put(v); }
  void Field(const std::string& v) {
    Count(v.size());
    out_ += v;
  }
  template <typename T>
  void Field(const std::vector<T>& v) {
    Count(v.size());
    if constexpr (std::is_same_v<T, int32_t>) {
      const size_t at = out_.size();
      out_.resize(at + v.size() * sizeof(T));
      for (size_t i = 0; i < v.size(); ++i) StoreLittle(&out_[at + i * sizeof(T)], static_cast<uint32_t>(v[i]));
    } else {
      for (const T& element : v) Field(element);
    }
  }
  template <typename T>
    requires std::is_class_v<T>
  void Field(const T& v) {
    VisitMembers(v, [this](const auto&... member) { (this->Field(member), ...); });
  }

  std::string Finish(Kind kind) && {
    StoreLittle(&out_[0], kMagic);
    StoreLittle(&out_[4], kStepCodecVersion);
    StoreLittle(&out_[6], static_cast<uint16_t>(kind));
    StoreLittle(&out_[8], StepChecksum(std::string_view(out_).substr(kStepHeaderBytes)));
    return std::move(out_);
  }

 private:
  void Count(size_t n) { Put(static_cast<uint32_t>(n)); }
  template <typename T>
  void Put(T v) {
    char bytes[sizeof(T)];
    StoreLittle(bytes, v);
    out_.append(bytes, sizeof(T));
  }

  std::string out_;
};

// Reads fields until the first failure, after which every read gives zero and ok() is false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}

  bool ok() const { return ok_; }
  bool at_end() const { return left_.empty(); }

  void Field(bool& v) {
    const uint8_t byte = Get<uint8_t>();
    ok_ = ok_ && byte <= 1;
    v = byte == 1;
  }
  void Field(float& v) { v = std::bit_cast<float>(Get<uint32_t>()); }
  void Field(int32_t& v) { v = static_cast<int32_t>(Get<uint32_t>()); }
  void Field(uint64_t& v) { v = Get<uint64_t>(); }
  void Field(uint32_t& v) { v = Get<uint32_t>(); }
  void Field(std::string& v) {
    const size_t n = Count(1);
    v = left_.substr(0, n);
    left_.remove_prefix(n);
  }
  template <typename T>
  void Field(std::vector<T>& v) {
    // Elements that are not plain integers start with a count or a 64-bit id: four bytes at least.
    const size_t n = Count(4);
    if constexpr (std::is_same_v<T, int32_t>) {
      v.resize(n);
      for (size_t i = 0; i < n; ++i) v[i] = static_cast<int32_t>(LoadLittle<uint32_t>(&left_[i * sizeof(T)]));
      left_.remove_prefix(n * sizeof(T));
    } else {
      for (size_t i = 0; i < n && ok_; ++i) Field(v.emplace_back());
    }
  }
  template <typename T>
    requires std::is_class_v<T>
  void Field(T& v) {
    VisitMembers(v, [this](auto&... member) { (this->Field(member), ...); });
  }

 private:
  template <typename T>
  T Get() {
    if (left_.size() < sizeof(T)) ok_ = false;
    if (!ok_) return 0;
    const T v = LoadLittle<T>(left_.data());
    left_.remove_prefix(sizeof(T));
    return v;
  }
  // A count whose elements of at least `element_bytes` can still be there; 0 and not ok otherwise.
  size_t Count(size_t element_bytes) {
    const size_t n = Get<uint32_t>();
    if (n > left_.size() / element_bytes) ok_ = false;
    return ok_ ? n : 0;
  }

  std::string_view left_;
  bool ok_ = true;
};

// One list of members per struct, for both directions.
template <typename S, typename T>
concept Is = std::is_same_v<std::remove_const_t<S>, T>;

template <Is<SamplingSpec> S>
void VisitMembers(S& s, auto&& v) {
  v(s.temperature, s.top_p, s.top_k, s.min_p, s.seed, s.min_tokens, s.banned_until_min);
}
template <Is<NewSequence> S>
void VisitMembers(S& s, auto&& v) {
  v(s.id, s.tokens, s.num_prompt_tokens, s.num_computed_tokens, s.sampling, s.block_ids);
}
template <Is<SequenceDiff> S>
void VisitMembers(S& s, auto&& v) {
  v(s.id, s.num_computed_tokens, s.new_block_ids);
}
template <Is<ScheduledRow> S>
void VisitMembers(S& s, auto&& v) {
  v(s.id, s.num_tokens, s.sample);
}
template <Is<StepPlan> S>
void VisitMembers(S& s, auto&& v) {
  v(s.step_id, s.removed, s.added, s.diffs, s.rows, s.total_tokens);
}
template <Is<SampledRow> S>
void VisitMembers(S& s, auto&& v) {
  v(s.id, s.tokens);
}

// The payload of a whole message, or why it is none.
Result<std::string_view> OpenMessage(std::string_view bytes, Kind kind) {
  const auto refuse = [](const std::string& what) { return Status::DataLoss("step message: " + what); };
  if (bytes.size() < kStepHeaderBytes) {
    return refuse("needs at least " + std::to_string(kStepHeaderBytes) + " bytes, got " + std::to_string(bytes.size()));
  }
  if (LoadLittle<uint32_t>(&bytes[0]) != kMagic) return refuse("wrong magic number");
  const uint16_t version = LoadLittle<uint16_t>(&bytes[4]);
  if (version != kStepCodecVersion) {
    return refuse("version must be " + std::to_string(kStepCodecVersion) + ", got " + std::to_string(version));
  }
  const uint16_t got = LoadLittle<uint16_t>(&bytes[6]);
  if (got != static_cast<uint16_t>(kind)) {
    return refuse("kind must be " + std::to_string(static_cast<uint16_t>(kind)) + ", got " + std::to_string(got));
  }
  const std::string_view payload = bytes.substr(kStepHeaderBytes);
  if (LoadLittle<uint64_t>(&bytes[8]) != StepChecksum(payload)) return refuse("the checksum does not match");
  return payload;
}

Status CloseMessage(const Reader& reader) {
  if (!reader.ok()) return Status::DataLoss("step message: a field or a count goes past the end");
  if (!reader.at_end()) return Status::DataLoss("step message: bytes after the last field");
  return Status::Ok();
}

}  // namespace

uint64_t StepChecksum(std::string_view payload) {
  // Every step is a bijection of the state for a given word and of the word for a given state.
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
  uint64_t state = (payload.size() + 1) * kOdd;
  const auto mix = [&state](uint64_t word) {
    state = (state ^ word) * kOdd;
    state ^= state >> 32;
  };
  while (payload.size() >= 8) {
    mix(LoadLittle<uint64_t>(payload.data()));
    payload.remove_prefix(8);
  }
  uint64_t rest = 0;
  for (size_t i = 0; i < payload.size(); ++i) rest |= uint64_t{static_cast<unsigned char>(payload[i])} << (8 * i);
  mix(rest);
  return state;
}

std::string EncodeStepPlan(const StepPlan& plan) {
  Writer writer;
  writer.Field(plan);
  return std::move(writer).Finish(Kind::kPlan);
}

Result<StepPlan> DecodeStepPlan(std::string_view bytes) {
  FASTLLM_ASSIGN_OR_RETURN(const std::string_view payload, OpenMessage(bytes, Kind::kPlan));
  Reader reader(payload);
  StepPlan plan;
  reader.Field(plan);
  FASTLLM_RETURN_IF_ERROR(CloseMessage(reader));
  return plan;
}

std::string EncodeStepResult(const StepResult& result) {
  Writer writer;
  writer.Field(result.step_id);
  writer.Field(static_cast<uint32_t>(result.status.code()));
  writer.Field(result.status.message());
  writer.Field(result.rows);
  return std::move(writer).Finish(Kind::kResult);
}

Result<StepResult> DecodeStepResult(std::string_view bytes) {
  FASTLLM_ASSIGN_OR_RETURN(const std::string_view payload, OpenMessage(bytes, Kind::kResult));
  Reader reader(payload);
  StepResult result;
  uint32_t code = 0;
  std::string message;
  reader.Field(result.step_id);
  reader.Field(code);
  reader.Field(message);
  reader.Field(result.rows);
  FASTLLM_RETURN_IF_ERROR(CloseMessage(reader));
  if (code > static_cast<uint32_t>(StatusCode::kInternal)) {
    return Status::DataLoss("step message: status code must be at most " +
                            std::to_string(static_cast<int>(StatusCode::kInternal)) + ", got " + std::to_string(code));
  }
  result.status = Status(static_cast<StatusCode>(code), std::move(message));
  return result;
}

}  // namespace fastllm
