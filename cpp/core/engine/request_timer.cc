#include "core/engine/request_timer.h"

#include <algorithm>

namespace fastllm {
namespace {

double Seconds(RequestTimer::Clock::duration d) { return std::chrono::duration<double>(d).count(); }

double Stamp(RequestTimer::Time t) { return Seconds(t.time_since_epoch()); }

double Between(RequestTimer::Time from, RequestTimer::Time to) {
  const RequestTimer::Time never;
  return from == never || to == never ? 0.0 : Seconds(to - from);
}

}  // namespace

RequestTimer::RequestTimer(int64_t arrival_ns, Time queued)
    : arrival_(arrival_ns > 0 ? Time(std::chrono::nanoseconds(arrival_ns)) : queued), queued_(queued) {}

std::optional<RequestTimer::Clock::duration> RequestTimer::Scheduled(Time now) {
  if (num_scheduled_++ > 0) return std::nullopt;
  scheduled_ = now;
  return now - arrival_;
}

void RequestTimer::Tokens(int32_t count, Time now) {
  if (count <= 0) return;
  if (num_tokens_ == 0) {
    first_token_ = now;
  } else {
    min_gap_ = std::min(min_gap_, now - last_token_);
    max_gap_ = std::max(max_gap_, now - last_token_);
  }
  last_token_ = now;
  num_tokens_ += count;
}

RequestMetrics RequestTimer::Finish(Time now) const {
  RequestMetrics m;
  // The wall clock may be set; it is read once, so that all intervals are of the steady clock.
  m.arrival_time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() -
                   Seconds(now - arrival_);
  m.queued_ts = Stamp(queued_);
  m.scheduled_ts = Stamp(scheduled_);
  m.first_token_ts = Stamp(first_token_);
  m.last_token_ts = Stamp(last_token_);
  m.first_token_latency = Between(arrival_, first_token_);
  m.queued_time = Between(queued_, scheduled_);
  m.prefill_time = Between(scheduled_, first_token_);
  m.decode_time = Between(first_token_, last_token_);
  m.inference_time = Between(scheduled_, last_token_);
  m.e2e_latency = Seconds(now - arrival_);
  if (num_tokens_ > 1) m.mean_time_per_output_token = m.decode_time / (num_tokens_ - 1);
  if (min_gap_ <= max_gap_) {
    m.min_inter_token_latency = Seconds(min_gap_);
    m.max_inter_token_latency = Seconds(max_gap_);
  }
  m.num_generation_tokens = num_tokens_;
  m.num_preemptions = std::max(0, num_scheduled_ - 1);
  return m;
}

}  // namespace fastllm
