#include "core/engine/output_router.h"

#include <algorithm>
#include <utility>

namespace fastllm {

OutputRouter::OutputRouter(std::shared_ptr<const TokenTable> tokens) : tokens_(std::move(tokens)) {}

bool OutputRouter::Add(const std::shared_ptr<const Request>& request, RequestTimer::Time now) {
  const auto [it, is_new] = live_.try_emplace(request->id);
  if (!is_new) return false;
  it->second.request = request;
  it->second.timer = RequestTimer(request->arrival_ns, now);
  if (tokens_ != nullptr && request->sampling.detokenize) it->second.text.emplace(tokens_, *request);
  return true;
}

void OutputRouter::MarkScheduled(RequestId id, RequestTimer::Time now) {
  if (const auto it = live_.find(id); it != live_.end()) it->second.timer.Scheduled(now);
}

RequestDelta OutputRouter::MakeDelta(const Live& live) const {
  RequestDelta delta;
  delta.request_id = live.request->id;
  delta.num_prompt_tokens = static_cast<int32_t>(live.request->prompt.size());
  delta.num_cached_tokens = live.num_cached_tokens;
  return delta;
}

bool OutputRouter::Route(SequenceUpdate update, RequestTimer::Time now) {
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
    delta.text_offsets = std::move(text.text_offsets);
    delta.token_ids.resize(text.num_tokens);
    if (text.stop_string) {
      stopped_by_text = update.finish_reason == FinishReason::kNone;
      delta.finish_reason = FinishReason::kStop;
      delta.stop_reason = *std::move(text.stop_string);
    }
  }
  live.timer.Tokens(static_cast<int32_t>(delta.token_ids.size()), now);
  const bool finished = delta.finish_reason != FinishReason::kNone;
  if (finished) {
    delta.metrics = live.timer.Finish(now);
    live_.erase(it);
    ++num_finished_;
  }
  if (finished || !delta.token_ids.empty()) deltas_.push_back(std::move(delta));
  return stopped_by_text;
}

bool OutputRouter::End(RequestId id, FinishReason reason, const std::string& error) {
  const auto it = live_.find(id);
  if (it == live_.end()) return false;
  RequestDelta delta = MakeDelta(it->second);
  delta.finish_reason = reason;
  delta.error = error;
  delta.metrics = it->second.timer.Finish(RequestTimer::Clock::now());
  if (it->second.text) delta.text = it->second.text->Append({}, reason).text;
  live_.erase(it);
  ++num_finished_;
  deltas_.push_back(std::move(delta));
  return true;
}

std::vector<RequestId> OutputRouter::EndAll(FinishReason reason, const std::string& error) {
  std::vector<RequestId> ids;
  ids.reserve(live_.size());
  for (const auto& [id, live] : live_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (const RequestId id : ids) End(id, reason, error);
  return ids;
}

std::vector<RequestDelta> OutputRouter::TakeDeltas() { return std::exchange(deltas_, {}); }

}  // namespace fastllm
