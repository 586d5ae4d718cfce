// OutputRouter: turns what a step did to sequences into deltas of requests. Keeps the text state of every live request.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/ids.h"
#include "core/engine/outbox.h"
#include "core/engine/request_timer.h"
#include "core/request/request.h"
#include "core/sched/scheduler.h"
#include "core/text/text_stream.h"
#include "fastllm/output.h"
#include "fastllm/status.h"
#include "fastllm/token_table.h"

namespace fastllm {

// Counts over all requests since the start.
struct RequestTotals {
  int64_t prompt_tokens = 0;      // of requests that came into a step
  int64_t generation_tokens = 0;  // delivered
  int64_t finished = 0;
  std::array<int64_t, 5> finished_by = {};  // [FinishReason]
};

// A request is live from Add() until the delta with its finish_reason, of which it gets exactly one. Engine thread
// only.
class OutputRouter {
 public:
  // `tokens` null: no text.
  explicit OutputRouter(std::shared_ptr<const TokenTable> tokens);

  // False, and nothing is changed, when the id is live already. `now` here and below: for RequestMetrics.
  bool Add(const std::shared_ptr<const Request>& request, RequestTimer::Time now);
  // The request is in a step as a new sequence. How long it was queued, the first time.
  std::optional<RequestTimer::Clock::duration> MarkScheduled(RequestId id, RequestTimer::Time now);
  bool IsLive(RequestId id) const { return live_.contains(id); }
  // The live requests that a host's handle stands for: itself, or the outputs of a request with n > 1.
  std::vector<RequestId> LiveOf(RequestId handle) const;

  // Keeps logprobs of the request's prompt for its next delta. Positions that it has already, which a preempted
  // sequence computes again, are passed over.
  void AddPromptLogprobs(PromptLogprobs logprobs);

  // Routes the new tokens of a sequence, and their logprobs when there are any. True when a stop string ended the
  // request while its sequence goes on: the caller then ends the sequence. Updates of requests that are not live are
  // ignored.
  bool Route(const SequenceUpdate& update, std::vector<PositionLogprobs>* logprobs, RequestTimer::Time now);

  // Ends a live request from outside the scheduler (kAbort, kError); what was held back is sent. False when not live.
  bool End(RequestId id, FinishReason reason, const Status& error = {});
  // Ends all live requests, oldest id first; returns their ids.
  std::vector<RequestId> EndAll(FinishReason reason, const Status& error = {});

  // Hands the deltas since the last call over, in the order in which they arose, and takes used ones back.
  void Publish(Outbox* outbox) { outbox->Push(&deltas_, &used_); }

  size_t num_live() const { return live_.size(); }
  const RequestTotals& totals() const { return totals_; }

 private:
  struct Live {
    std::shared_ptr<const Request> request;
    std::optional<TextStream> text;  // absent: no text was asked for or can be made
    int32_t num_cached_tokens = 0;
    RequestTimer timer;
    std::vector<PositionLogprobs> prompt_logprobs = {};  // not sent yet
    int32_t num_prompt_logprobs = 1;                     // positions that are known, sent or not
    RequestDelta unsent = {};                            // what output_kind final_only keeps for the last delta
  };
  // The outputs of a request with n > 1.
  struct Family {
    int32_t size = 0;
    int32_t num_live = 0;
  };
  // A delta at the end of deltas_, empty but for what is known of the request.
  RequestDelta& NewDelta(const Live& live);
  void Send(Live* live);  // the last of deltas_, which is of this request
  void TakeBack();        // the last of deltas_
  // It has had its last delta.
  void Erase(std::unordered_map<RequestId, Live>::iterator it, FinishReason reason);

  std::shared_ptr<const TokenTable> tokens_;
  std::unordered_map<RequestId, Live> live_;
  std::unordered_map<RequestId, Family> families_;  // by parent, while one of them is live
  std::vector<RequestDelta> deltas_;
  std::vector<RequestDelta> used_;  // to be filled again
  TextUpdate text_;                 // scratch of Route()
  RequestTotals totals_;
};

}  // namespace fastllm
