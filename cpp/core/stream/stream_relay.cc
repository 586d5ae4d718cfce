#include "core/stream/stream_relay.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <optional>
#include <system_error>
#include <utility>

#include "core/stream/json_text.h"

namespace fastllm {
namespace {

UniqueFd NewEventFd() {
  UniqueFd fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (fd.get() < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  return fd;
}

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A write of 1 to an eventfd at 0 cannot fail.
void Raise(const UniqueFd& fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(fd.get(), &one, sizeof(one));
}

// HTTP's chunked coding.
void AppendChunk(std::string_view data, std::string* out) {
  std::array<char, 16> size;
  const auto end = std::to_chars(size.data(), size.data() + size.size(), data.size(), 16).ptr;
  out->append(size.data(), end);
  out->append("\r\n").append(data).append("\r\n");
}

// Bytes that the socket took; fewer than there are when it is full or broken.
size_t SendNow(const UniqueFd& fd, std::string_view data) {
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t sent = send(fd.get(), data.data() + done, data.size() - done, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) break;
    done += static_cast<size_t>(sent);
  }
  return done;
}

// Core's own id of an output; see Request::parent_id.
template <typename T>
uint64_t OutputId(const T& of) {
  return of.request_id + static_cast<uint64_t>(of.index);
}

// Or until *stop is readable.
void WaitUntil(std::chrono::steady_clock::time_point time, pollfd* stop) {
  const auto left = std::chrono::nanoseconds(time - std::chrono::steady_clock::now()).count();
  if (left <= 0) return;
  const timespec wait{static_cast<time_t>(left / 1000000000), static_cast<long>(left % 1000000000)};
  ppoll(stop, 1, &wait, nullptr);
}

bool IsEnd(const RequestDelta& delta) { return delta.finish_reason != FinishReason::kNone; }

// Whatever the stream is like.
bool IsForHost(const RequestDelta& delta) {
  const bool ordinary =
      !IsEnd(delta) || delta.finish_reason == FinishReason::kLength || delta.finish_reason == FinishReason::kStop;
  return !ordinary || !delta.logprobs.empty() || !delta.prompt_logprobs.empty();
}

void AppendStopReason(const StopReason& reason, std::string* out) {
  if (const auto* const id = std::get_if<int32_t>(&reason)) {
    out->append(std::to_string(*id));
  } else if (const auto* const text = std::get_if<std::string>(&reason)) {
    AppendJsonString(*text, out);
  } else {
    out->append("null");
  }
}

// An output's next event, in *out; empty when there is nothing to say.
void MakeEvent(const RelayedOutput& output, const RequestDelta& delta, std::string* out) {
  out->clear();
  if (!delta.text.empty()) {  // else part of a character, or held back for a stop string
    out->assign(output.prefix);
    AppendJsonString(delta.text, out);
  }
  if (!IsEnd(delta)) {
    if (!delta.text.empty()) out->append(output.suffix);
    return;
  }
  out->append(delta.text.empty() ? output.end.no_text : output.end.text);
  out->append(FinishReasonName(delta.finish_reason)).append(output.end.stop);
  AppendStopReason(delta.stop_reason, out);
  out->append(output.end.tail);
}

}  // namespace

struct StreamRelay::Stream {
  std::mutex mutex;  // of all below
  bool open = true;  // the relay writes to it
  UniqueFd fd;
  bool chunked = false;
  std::vector<RelayedOutput> outputs;
  RelayedWork work;
  std::string event, frame;  // scratch
};

StreamRelay::StreamRelay(Engine* engine, std::vector<double> gap_edges, RelayPace pace)
    : engine_(engine), gap_edges_(std::move(gap_edges)), pace_(pace), news_fd_(NewEventFd()), stop_fd_(NewEventFd()) {
  thread_ = std::thread([this] { Run(); });
}

StreamRelay::~StreamRelay() {
  if (getpid() != pid_) {
    thread_.detach();  // fork() has copied the handle and not the thread
    return;
  }
  Raise(stop_fd_);
  thread_.join();
}

void StreamRelay::Run() noexcept {
  pthread_setname_np(pthread_self(), "fastllm-relay");
  try {
    Carry();
  } catch (...) {
    engine_->Shutdown();  // out of memory: news would be lost, and an engine that has ended is seen
    Raise(news_fd_);
  }
}

void StreamRelay::Carry() {
  std::array<pollfd, 2> watched = {pollfd{engine_->event_fd(), POLLIN, 0}, pollfd{stop_fd_.get(), POLLIN, 0}};
  std::vector<RequestDelta> deltas;
  std::optional<std::chrono::steady_clock::time_point> last;  // look; the first waits for nothing
  for (;;) {
    const auto events = static_cast<int64_t>(deltas.size());
    if (last) WaitUntil(*last + std::max(pace_.round, pace_.per_output * events), &watched[1]);
    if (poll(watched.data(), watched.size(), -1) < 0) continue;  // EINTR
    if (watched[1].revents != 0) return;
    last = std::chrono::steady_clock::now();
    engine_->DrainInto(std::chrono::milliseconds(0), &deltas);
    if (deltas.empty()) {  // the engine has ended: the host asks for its health
      const std::lock_guard lock(mutex_);
      Signal();
    }
    for (RequestDelta& delta : deltas) Handle(&delta);
  }
}

void StreamRelay::ToHost(RequestDelta* delta) {
  const std::lock_guard lock(mutex_);
  shared_.news.push_back(std::move(*delta));
  Signal();
}

// Deltas come in order and each is done with before the next, so it does not matter how often a host takes an output
// and gives it back meanwhile: what it finds pending is older than what is handled here.
void StreamRelay::Handle(RequestDelta* delta) {
  for (;;) {
    Place place;
    {
      const std::lock_guard lock(mutex_);
      const auto found = shared_.places.find(OutputId(*delta));
      if (found == shared_.places.end() || IsForHost(*delta)) {
        shared_.news.push_back(std::move(*delta));
        Signal();
        return;
      }
      place = found->second;
    }
    const std::lock_guard lock(place.stream->mutex);
    if (!place.stream->open) continue;  // a host was quicker; the output may be in another stream now
    if (IsEnd(*delta) && place.stream->outputs[place.output].end.tail.empty()) return ToHost(delta);
    Write(place.stream.get(), place.output, *delta);
    if (!IsEnd(*delta)) return;
    place.stream->work.ended[place.output] = true;
    delta->token_ids.clear();
    delta->text.clear();
    delta->text_offsets.clear();
    return ToHost(delta);
  }
}

void StreamRelay::Write(Stream* stream, size_t index, const RequestDelta& delta) {
  RelayedOutput& output = stream->outputs[index];
  const auto tokens = static_cast<int64_t>(delta.token_ids.size());
  if (tokens > 0) {
    const double now = Seconds();
    const double before = std::exchange(output.last_time, now);
    stream->work.tokens += tokens;
    Count(output.lane, before > 0 ? now - before : -1, delta);
  }
  MakeEvent(output, delta, &stream->event);
  if (!stream->event.empty()) Send(stream, stream->event);
}

void StreamRelay::Count(int32_t lane, double gap, const RequestDelta& delta) {
  const std::lock_guard lock(mutex_);
  RelayTotals& totals = shared_.totals[static_cast<size_t>(lane)];
  totals.tokens += static_cast<int64_t>(delta.token_ids.size());
  totals.events += delta.text.empty() && !IsEnd(delta) ? 0 : 1;
  if (gap < 0) return;  // there is none before the first
  const auto edge = std::ranges::lower_bound(gap_edges_, gap) - gap_edges_.begin();
  ++totals.gaps[static_cast<size_t>(edge)];
  totals.gap_seconds += gap;
}

void StreamRelay::Send(Stream* stream, std::string_view event) {
  stream->work.bytes += static_cast<int64_t>(event.size());
  std::string_view data = event;
  if (stream->chunked) {
    stream->frame.clear();
    AppendChunk(event, &stream->frame);
    data = stream->frame;
  }
  if (!stream->open) {  // its socket was full before
    stream->work.unsent.append(data);
    return;
  }
  const size_t sent = SendNow(stream->fd, data);
  if (sent == data.size()) return;
  stream->work.unsent = data.substr(sent);
  stream->open = false;
  RequestDelta nudge;  // its host is to take it back
  nudge.request_id = stream->outputs.front().request_id;
  nudge.index = stream->outputs.front().index;
  const std::lock_guard lock(mutex_);
  Remove(*stream);
  shared_.news.push_back(std::move(nudge));
  Signal();
}

void StreamRelay::Remove(const Stream& stream) {
  for (const RelayedOutput& output : stream.outputs) {
    const auto place = shared_.places.find(OutputId(output));
    if (place != shared_.places.end() && place->second.stream.get() == &stream) shared_.places.erase(place);
  }
}

void StreamRelay::Signal() {
  if (!std::exchange(shared_.signalled, true)) Raise(news_fd_);
}

Status StreamRelay::Check(const RelayedStream& stream) const {
  if (stream.outputs.empty()) return Status::InvalidArgument("a stream must have at least one output");
  for (const RelayedOutput& output : stream.outputs) {
    if (shared_.places.contains(OutputId(output))) {
      return Status::InvalidArgument("output " + std::to_string(OutputId(output)) + " is in a stream already");
    }
    if (output.lane < 0 || output.lane >= kMostLanes) {
      return Status::InvalidArgument("lane must be from 0 to " + std::to_string(kMostLanes - 1) + ", got " +
                                     std::to_string(output.lane));
    }
  }
  return Status::Ok();
}

Result<uint64_t> StreamRelay::Attach(RelayedStream given) {
  UniqueFd fd(fcntl(given.fd, F_DUPFD_CLOEXEC, 0));
  if (fd.get() < 0) {
    return Status::ResourceExhausted("socket " + std::to_string(given.fd) +
                                     " cannot be duplicated: " + std::generic_category().message(errno));
  }
  auto stream = std::make_shared<Stream>();
  const std::lock_guard writing(stream->mutex);  // until all is written that is older than what is to come
  stream->fd = std::move(fd);
  stream->chunked = given.chunked;
  std::vector<std::pair<size_t, RequestDelta>> pending;
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    FASTLLM_RETURN_IF_ERROR(Check(given));
    stream->outputs = std::move(given.outputs);
    stream->work.ended.resize(stream->outputs.size());
    for (size_t i = 0; i < stream->outputs.size(); ++i) {
      const auto lanes = static_cast<size_t>(stream->outputs[i].lane) + 1;
      if (shared_.totals.size() < lanes) {
        RelayTotals none;
        none.gaps.resize(gap_edges_.size() + 1);
        shared_.totals.resize(lanes, none);
      }
      shared_.places[OutputId(stream->outputs[i])] = {stream, i};
    }
    TakePending(*stream, &pending);
    number = ++shared_.last_number;
    shared_.streams[number] = stream;
  }
  if (!given.begin.empty()) Send(stream.get(), given.begin);
  for (const auto& [output, delta] : pending) Write(stream.get(), output, delta);
  return number;
}

// What is pending for the host of a stream's outputs and can be written, in order.
void StreamRelay::TakePending(const Stream& stream, std::vector<std::pair<size_t, RequestDelta>>* pending) {
  std::erase_if(shared_.news, [&](RequestDelta& delta) {
    if (IsForHost(delta) || IsEnd(delta)) return false;
    const auto place = shared_.places.find(OutputId(delta));
    if (place == shared_.places.end() || place->second.stream.get() != &stream) return false;
    pending->emplace_back(place->second.output, std::move(delta));
    return true;
  });
}

RelayedWork StreamRelay::Detach(uint64_t number) {
  std::shared_ptr<Stream> stream;
  {
    const std::lock_guard lock(mutex_);
    const auto found = shared_.streams.find(number);
    if (found == shared_.streams.end()) return {};
    stream = std::move(found->second);
    shared_.streams.erase(found);
    Remove(*stream);
  }
  const std::lock_guard lock(stream->mutex);
  stream->open = false;
  RelayedWork work = std::move(stream->work);
  for (const RelayedOutput& output : stream->outputs) work.last_times.push_back(output.last_time);
  return work;
}

std::vector<RequestDelta> StreamRelay::Drain() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(shared_.signalled, false)) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(news_fd_.get(), &count, sizeof(count));
  }
  return std::exchange(shared_.news, {});
}

std::vector<RelayTotals> StreamRelay::totals() const {
  const std::lock_guard lock(mutex_);
  return shared_.totals;
}

}  // namespace fastllm
