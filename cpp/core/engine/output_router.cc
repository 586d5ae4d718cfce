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

std::optional<RequestTimer::Clock::duration> OutputRouter::MarkScheduled(RequestId id, RequestTimer::Time now) {
  const auto it = live_.find(id);
  if (it == live_.end()) return std::nullopt;
  const auto queued = it->second.timer.Scheduled(now);
  if (queued) totals_.prompt_tokens += static_cast<int64_t>(it->second.request->prompt.size());
  return queued;
}

RequestDelta& OutputRouter::NewDelta(const Live& live) {
  if (used_.empty()) {
    deltas_.emplace_back();
  } else {
    // All members anew but the memory of these two.
    RequestDelta& used = used_.back();
    std::vector<TokenId> token_ids = std::move(used.token_ids);
    std::string text = std::move(used.text);
    token_ids.clear();
    text.clear();
    used = RequestDelta{};
    used.token_ids = std::move(token_ids);
    used.text = std::move(text);
    deltas_.push_back(std::move(used));
    used_.pop_back();
  }
  RequestDelta& delta = deltas_.back();
  delta.request_id = live.request->id;
  delta.num_prompt_tokens = static_cast<int32_t>(live.request->prompt.size());
  delta.num_cached_tokens = live.num_cached_tokens;
  return delta;
}

void OutputRouter::CountFinished(FinishReason reason) {
  ++totals_.finished;
  ++totals_.finished_by[static_cast<size_t>(reason)];
}

bool OutputRouter::Route(const SequenceUpdate& update, RequestTimer::Time now) {
  const auto it = live_.find(update.id);
  if (it == live_.end()) return false;
  Live& live = it->second;
  live.num_cached_tokens = update.num_cached_tokens;
  RequestDelta& delta = NewDelta(live);
  delta.token_ids.assign(update.new_tokens.begin(), update.new_tokens.end());
  delta.finish_reason = update.finish_reason;
  delta.stop_reason = update.stop_reason;
  bool stopped_by_text = false;
  if (live.text) {
    TextUpdate text = live.text->Append(delta.token_ids, update.finish_reason);
    delta.text += text.text;
    delta.token_ids.resize(text.num_tokens);
    if (text.stop_string) {
      stopped_by_text = update.finish_reason == FinishReason::kNone;
      delta.finish_reason = FinishReason::kStop;
      delta.stop_reason = *std::move(text.stop_string);
    }
  }
  live.timer.Tokens(static_cast<int32_t>(delta.token_ids.size()), now);
  totals_.generation_tokens += static_cast<int64_t>(delta.token_ids.size());
  const bool finished = delta.finish_reason != FinishReason::kNone;
  if (finished) {
    delta.metrics = live.timer.Finish(now);
    CountFinished(delta.finish_reason);
    live_.erase(it);
  }
  if (!finished && delta.token_ids.empty()) {
    used_.push_back(std::move(delta));
    deltas_.pop_back();
  }
  return stopped_by_text;
}

bool OutputRouter::End(RequestId id, FinishReason reason, const Status& error) {
  const auto it = live_.find(id);
  if (it == live_.end()) return false;
  RequestDelta& delta = NewDelta(it->second);
  delta.finish_reason = reason;
  delta.error = error.message();
  delta.error_code = error.code();
  delta.metrics = it->second.timer.Finish(RequestTimer::Clock::now());
  if (it->second.text) delta.text = it->second.text->Append({}, reason).text;
  CountFinished(reason);
  live_.erase(it);
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

}  // namespace fastllm
