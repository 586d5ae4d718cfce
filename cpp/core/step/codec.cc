#include "core/step/codec.h"

#include <type_traits>
#include <vector>

#include "core/step/wire.h"

namespace fastllm {

// One list of members per struct, for both directions.
template <typename S, typename T>
concept Is = std::is_same_v<std::remove_const_t<S>, T>;

template <Is<ProcessorSpec> S>
void VisitMembers(S& s, auto&& v) {
  v(s.which, s.index, s.params);
}
template <Is<LogitsSpec> S>
void VisitMembers(S& s, auto&& v) {
  v(s.repetition_penalty, s.frequency_penalty, s.presence_penalty, s.logit_bias, s.allowed, s.bad_words,
    s.dry_multiplier, s.dry_base, s.dry_allowed_length, s.dry_range, s.dry_breakers);
}
template <Is<LogprobsSpec> S>
void VisitMembers(S& s, auto&& v) {
  v(s.num_top, s.ids);
}
template <Is<SamplingSpec> S>
void VisitMembers(S& s, auto&& v) {
  v(s.temperature, s.top_p, s.top_k, s.min_p, s.seed, s.min_tokens, s.banned_until_min, s.typical_p, s.top_n_sigma,
    s.xtc_probability, s.xtc_threshold, s.logits, s.logprobs, s.prompt_logprobs, s.processors);
}
template <Is<NewSequence> S>
void VisitMembers(S& s, auto&& v) {
  v(s.id, s.tokens, s.num_prompt_tokens, s.num_computed_tokens, s.sampling, s.block_ids, s.repeats_last);
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
  v(s.id, s.tokens, s.logprobs, s.error);
}
template <Is<PromptLogprobs> S>
void VisitMembers(S& s, auto&& v) {
  v(s.id, s.first_position, s.positions);
}

namespace {

constexpr uint32_t kMagic = 0x504C4C46;  // "FLLP"
enum class Kind : uint16_t { kPlan = 1, kResult = 2 };

std::string Finish(WireWriter writer, Kind kind) {
  std::string out = std::move(writer).Take();
  StoreLittle(&out[0], kMagic);
  StoreLittle(&out[4], kStepCodecVersion);
  StoreLittle(&out[6], static_cast<uint16_t>(kind));
  StoreLittle(&out[8], StepChecksum(std::string_view(out).substr(kStepHeaderBytes)));
  return out;
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

Status CloseMessage(const WireReader& reader) {
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
  WireWriter writer(kStepHeaderBytes);
  writer.Field(plan);
  return Finish(std::move(writer), Kind::kPlan);
}

Result<StepPlan> DecodeStepPlan(std::string_view bytes) {
  FASTLLM_ASSIGN_OR_RETURN(const std::string_view payload, OpenMessage(bytes, Kind::kPlan));
  WireReader reader(payload);
  StepPlan plan;
  reader.Field(plan);
  FASTLLM_RETURN_IF_ERROR(CloseMessage(reader));
  return plan;
}

std::string EncodeStepResult(const StepResult& result) {
  WireWriter writer(kStepHeaderBytes);
  writer.Field(result.step_id);
  writer.Field(static_cast<uint32_t>(result.status.code()));
  writer.Field(result.status.message());
  writer.Field(result.rows);
  writer.Field(result.prompt_logprobs);
  return Finish(std::move(writer), Kind::kResult);
}

Result<StepResult> DecodeStepResult(std::string_view bytes) {
  FASTLLM_ASSIGN_OR_RETURN(const std::string_view payload, OpenMessage(bytes, Kind::kResult));
  WireReader reader(payload);
  StepResult result;
  uint32_t code = 0;
  std::string message;
  reader.Field(result.step_id);
  reader.Field(code);
  reader.Field(message);
  reader.Field(result.rows);
  reader.Field(result.prompt_logprobs);
  FASTLLM_RETURN_IF_ERROR(CloseMessage(reader));
  if (code > static_cast<uint32_t>(StatusCode::kDeadlineExceeded)) {
    return Status::DataLoss("step message: status code must be at most " +
                            std::to_string(static_cast<int>(StatusCode::kDeadlineExceeded)) + ", got " +
                            std::to_string(code));
  }
  result.status = Status(static_cast<StatusCode>(code), std::move(message));
  return result;
}

}  // namespace fastllm
