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
  if (request->parent_id != 0) {
    Family& family = families_[request->parent_id];
    family.size = std::max(family.size, request->index + 1);
    ++family.num_live;
  }
  it->second.timer = RequestTimer(request->arrival_ns, now);
  if (request->sampling.prompt_logprobs) it->second.prompt_logprobs.emplace_back();  // nothing precedes the first token
  if (tokens_ != nullptr && request->sampling.detokenize) it->second.text.emplace(tokens_, *request);
  return true;
}

std::vector<RequestId> OutputRouter::LiveOf(RequestId handle) const {
  std::vector<RequestId> ids;
  if (const auto family = families_.find(handle); family != families_.end()) {
    ids.reserve(family->second.num_live);
    for (int32_t index = 0; index < family->second.size; ++index) {
      if (live_.contains(handle + index)) ids.push_back(handle + index);
    }
  } else if (const auto it = live_.find(handle); it != live_.end() && it->second.request->parent_id == 0) {
    ids.push_back(handle);
  }
  return ids;
}

void OutputRouter::Erase(std::unordered_map<RequestId, Live>::iterator it, FinishReason reason) {
  const RequestId parent = it->second.request->parent_id;
  if (parent != 0 && --families_[parent].num_live == 0) families_.erase(parent);
  live_.erase(it);
  ++totals_.finished;
  ++totals_.finished_by[static_cast<size_t>(reason)];
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
    // All members anew but the memory of these three.
    RequestDelta& used = used_.back();
    std::vector<TokenId> token_ids = std::move(used.token_ids);
    std::string text = std::move(used.text);
    std::vector<int32_t> text_offsets = std::move(used.text_offsets);
    token_ids.clear();
    text.clear();
    text_offsets.clear();
    used = RequestDelta{};
    used.token_ids = std::move(token_ids);
    used.text = std::move(text);
    used.text_offsets = std::move(text_offsets);
    deltas_.push_back(std::move(used));
    used_.pop_back();
  }
  RequestDelta& delta = deltas_.back();
  delta.request_id = live.request->id - live.request->index;
  delta.index = live.request->index;
  delta.num_prompt_tokens = static_cast<int32_t>(live.request->prompt.size());
  delta.num_cached_tokens = live.num_cached_tokens;
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

void OutputRouter::TakeBack() {
  used_.push_back(std::move(deltas_.back()));
  deltas_.pop_back();
}

// `final_only` requests get one delta, which is their last: everything before it is kept.
void OutputRouter::Send(Live* live) {
  RequestDelta& delta = deltas_.back();
  delta.prompt_logprobs = std::exchange(live->prompt_logprobs, {});
  if (live->request->sampling.output_kind != "final_only") return;
  JoinDeltas(&live->unsent, &delta);
  if (live->unsent.finish_reason == FinishReason::kNone) return TakeBack();
  std::swap(live->unsent, delta);
}

bool OutputRouter::Route(const SequenceUpdate& update, std::vector<PositionLogprobs>* logprobs,
                         RequestTimer::Time now) {
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
    TextUpdate& text = text_;
    live.text->Append(delta.token_ids, update.finish_reason, &text);
    delta.text += text.text;
    delta.text_offsets.assign(text.text_offsets.begin(), text.text_offsets.end());
    delta.token_ids.resize(text.num_tokens);
    if (text.stop_string) {
      stopped_by_text = update.finish_reason == FinishReason::kNone;
      delta.finish_reason = FinishReason::kStop;
      delta.stop_reason = *std::move(text.stop_string);
    }
  }
  delta.logprobs.swap(*logprobs);
  if (!delta.logprobs.empty()) delta.logprobs.resize(delta.token_ids.size());
  live.timer.Tokens(static_cast<int32_t>(delta.token_ids.size()), now);
  totals_.generation_tokens += static_cast<int64_t>(delta.token_ids.size());
  const FinishReason reason = delta.finish_reason;
  const bool finished = reason != FinishReason::kNone;
  if (finished) delta.metrics = live.timer.Finish(now);
  if (finished || !delta.token_ids.empty()) {
    Send(&live);
  } else {
    TakeBack();
  }
  if (finished) Erase(it, reason);
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
  Send(&it->second);
  Erase(it, reason);
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
