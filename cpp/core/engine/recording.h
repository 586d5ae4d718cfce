// The frames of a recording: what went into a scheduler and what came out, in order, so that it can be run again.
//
//   "FLLMREC" u8 version   then frames: u8 kind   u32 bytes   payload
//
// A change of the fields or of the frames is another version; a build reads its own.
//
// Payloads are fields of core/step/wire.h; plans and results are whole messages of core/step/codec.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/config/resolved.h"
#include "core/engine/control.h"
#include "core/request/request.h"
#include "core/step/wire.h"

namespace fastllm {

inline constexpr std::string_view kRecordingMagic = "FLLMREC";
inline constexpr uint8_t kRecordingVersion = 6;
inline constexpr size_t kRecordingHeaderBytes = kRecordingMagic.size() + 1;
inline constexpr size_t kFrameHeaderBytes = 5;

enum class FrameKind : uint8_t {
  kConfig = 1,  // SchedConfig, KvConfig; the first frame
  kAdd = 2,     // Request
  kFinish = 3,  // RequestId
  kPlan = 4,    // the plan that Schedule() gave
  kResult = 5,  // what Update() was given, or a result that ended the engine
  kResetPrefixCache = 6,
  kFull = 7,  // the size limit was reached; nothing follows
  kTime = 8,  // int64, the scheduler's clock (ms) from here on
  kPin = 9,   // PrefixQuery
};

template <typename S, typename T>
concept RecordedAs = std::is_same_v<std::remove_const_t<S>, T>;

// The bindings fail to compile when a struct gets a field that is not recorded.
template <RecordedAs<SchedConfig> S>
void VisitMembers(S& s, auto&& v) {
  auto& [seqs, tokens, len, threshold, chunked, overlap, policy, fair, mixed, watermark, queued_reqs, queued_tokens,
         timeout, max_queue, stages] = s;
  v(seqs, tokens, len, threshold, chunked, overlap, policy, fair, mixed, watermark, queued_reqs, queued_tokens, timeout,
    max_queue, stages);
}
template <RecordedAs<KvGroupSpec> S>
void VisitMembers(S& s, auto&& v) {
  auto& [kind, window, block_size] = s;
  v(kind, window, block_size);
}
template <RecordedAs<KvConfig> S>
void VisitMembers(S& s, auto&& v) {
  auto& [blocks, block_size, caching, groups, algo, seed, step_tokens, events] = s;
  v(blocks, block_size, caching, groups, algo, seed, step_tokens, events);
}
template <RecordedAs<MediaSpan> S>
void VisitMembers(S& s, auto&& v) {
  auto& [hash, offset, length] = s;
  v(hash, offset, length);
}
template <RecordedAs<ExtraKeys> S>
void VisitMembers(S& s, auto&& v) {
  auto& [salt, lora_name, lora_path, media, embeddings] = s;
  v(salt, lora_name, lora_path, media, embeddings);
}
template <RecordedAs<PrefixQuery> S>
void VisitMembers(S& s, auto&& v) {
  auto& [tokens, keys, priority, ttl] = s;
  v(tokens, keys, priority, ttl);
}
template <RecordedAs<Request> S>
void VisitMembers(S& s, auto&& v) {
  auto& [id, prompt, sampling, seed, max_tokens, eos, keys, breakers, parent, index, processors, arrival, priority,
         timeout, max_queue, read_cache] = s;
  v(id, prompt, sampling, seed, max_tokens, eos, keys, breakers, parent, index, processors, arrival, priority, timeout,
    max_queue, read_cache);
}

}  // namespace fastllm
