#include "core/engine/output_router.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/engine/join_deltas.h"

namespace fastllm {

OutputRouter::OutputRouter(std::shared_ptr<const TokenTable> tokens) : tokens_(std::move(tokens)) {}

bool OutputRouter::Add(const std::shared_ptr<const Request>& request, RequestTimer::Time now) {
  const auto [it, is_new] = live_.try_emplace(request->id);
  if (!is_new) return false;
  it->second.request = request;
  it->second.timer = RequestTimer(request->arrival_ns, now);
  if (request->sampling.prompt_logprobs) it->second.prompt_logprobs.emplace_back();  // nothing precedes the first token
  if (tokens_ != nullptr && request->sampling.detokenize) it->second.text.emplace(tokens_, *request);
  return true;
}

std::optional<RequestTimer::Clock::duration> OutputRouter::MarkScheduled(RequestId id, RequestTimer::Time now) {
  const auto it = live_.find(id);
  return it == live_.end() ? std::nullopt : it->second.timer.Scheduled(now);
}

RequestDelta OutputRouter::MakeDelta(Live& live) const {
  RequestDelta delta;
  delta.request_id = live.request->id;
  delta.num_prompt_tokens = static_cast<int32_t>(live.request->prompt.size());
  delta.num_cached_tokens = live.num_cached_tokens;
  delta.prompt_logprobs = std::exchange(live.prompt_logprobs, {});
  return delta;
}

void OutputRouter::AddPromptLogprobs(PromptLogprobs logprobs) {
  const auto it = live_.find(logprobs.id);
  if (it == live_.end()) return;
  Live& live = it->second;
  const int32_t known = live.num_prompt_logprobs - logprobs.first_position;
  FASTLLM_CHECK(known >= 0, "prompt logprobs of request " + std::to_string(logprobs.id) + " begin at " +
                                std::to_string(logprobs.first_position) + ", after a gap");
  for (size_t i = static_cast<size_t>(known); i < logprobs.positions.size(); ++i) {
    live.prompt_logprobs.push_back(std::move(logprobs.positions[i]));
    ++live.num_prompt_logprobs;
  }
}

// `final_only` requests get one delta, which is their last: everything before it is kept.
void OutputRouter::Send(Live& live, RequestDelta delta) {
  if (live.request->sampling.output_kind != "final_only") {
    deltas_.push_back(std::move(delta));
    return;
  }
  JoinDeltas(&live.unsent, std::move(delta));
  if (live.unsent.finish_reason != FinishReason::kNone) deltas_.push_back(std::move(live.unsent));
}

bool OutputRouter::Route(SequenceUpdate update, std::vector<PositionLogprobs> logprobs, RequestTimer::Time now) {
  const auto it = live_.find(update.id);
  if (it == live_.end()) return false;
  Live& live = it->second;
  live.num_cached_tokens = update.num_cached_tokens;
  RequestDelta delta = MakeDelta(live);
  delta.token_ids = std::move(update.new_tokens);
  delta.finish_reason = update.finish_reason;
  delta.stop_reason = std::move(update.stop_reason);
  bool stopped_by_text = false;
  if (live.text) {
    TextUpdate text = live.text->Append(delta.token_ids, update.finish_reason);
    delta.text = std::move(text.text);
    delta.token_ids.resize(text.num_tokens);
    if (text.stop_string) {
      stopped_by_text = update.finish_reason == FinishReason::kNone;
      delta.finish_reason = FinishReason::kStop;
      delta.stop_reason = *std::move(text.stop_string);
    }
  }
  delta.logprobs = std::move(logprobs);
  if (!delta.logprobs.empty()) delta.logprobs.resize(delta.token_ids.size());
  live.timer.Tokens(static_cast<int32_t>(delta.token_ids.size()), now);
  const bool finished = delta.finish_reason != FinishReason::kNone;
  if (finished) delta.metrics = live.timer.Finish(now);
  if (finished || !delta.token_ids.empty()) Send(live, std::move(delta));
  if (finished) {
    live_.erase(it);
    ++num_finished_;
  }
  return stopped_by_text;
}

bool OutputRouter::End(RequestId id, FinishReason reason, const Status& error) {
  const auto it = live_.find(id);
  if (it == live_.end()) return false;
  RequestDelta delta = MakeDelta(it->second);
  delta.finish_reason = reason;
  delta.error = error.message();
  delta.error_code = error.code();
  delta.metrics = it->second.timer.Finish(RequestTimer::Clock::now());
  if (it->second.text) delta.text = it->second.text->Append({}, reason).text;
  Send(it->second, std::move(delta));
  live_.erase(it);
  ++num_finished_;
  return true;
}

std::vector<RequestId> OutputRouter::EndAll(FinishReason reason, const Status& error) {
  std::vector<RequestId> ids;
  ids.reserve(live_.size());
  for (const auto& [id, live] : live_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (const RequestId id : ids) End(id, reason, error);
  return ids;
}

std::vector<RequestDelta> OutputRouter::TakeDeltas() { return std::exchange(deltas_, {}); }

}  // namespace fastllm
