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
size_t Send(const UniqueFd& fd, std::string_view data) {
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

bool IsForHost(const RequestDelta& delta) {
  return delta.finish_reason != FinishReason::kNone || !delta.logprobs.empty() || !delta.prompt_logprobs.empty();
}

}  // namespace

struct StreamRelay::Stream {
  UniqueFd fd;
  bool chunked = false;
  std::vector<RelayedOutput> outputs;
  RelayedWork work;
};

// The mutex, before the relay's thread takes it again: it gives way to hosts between two writes.
class StreamRelay::HostTurn {
 public:
  explicit HostTurn(const StreamRelay& relay) : relay_(relay) {
    relay_.waiting_.fetch_add(1);
    lock_ = std::unique_lock(relay_.mutex_);
  }
  ~HostTurn() {
    const bool last = relay_.waiting_.fetch_sub(1) == 1;
    lock_.unlock();
    if (last) relay_.turn_.notify_one();
  }
  HostTurn(const HostTurn&) = delete;
  HostTurn& operator=(const HostTurn&) = delete;

 private:
  const StreamRelay& relay_;
  std::unique_lock<std::mutex> lock_;
};

StreamRelay::StreamRelay(Engine* engine, std::vector<double> gap_edges, std::chrono::microseconds round)
    : engine_(engine), gap_edges_(std::move(gap_edges)), round_(round), news_fd_(NewEventFd()), stop_fd_(NewEventFd()) {
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
  std::chrono::steady_clock::time_point last;
  for (;;) {
    WaitUntil(last + round_, &watched[1]);
    if (poll(watched.data(), watched.size(), -1) < 0) continue;  // EINTR
    if (watched[1].revents != 0) return;
    last = std::chrono::steady_clock::now();
    engine_->DrainInto(std::chrono::milliseconds(0), &deltas);
    std::unique_lock lock(mutex_);
    if (deltas.empty()) Signal();  // the engine has ended: the host asks for its health
    for (RequestDelta& delta : deltas) {
      turn_.wait(lock, [this] { return waiting_.load() == 0; });
      if (Relay(delta)) continue;
      shared_.news.push_back(std::move(delta));
      Signal();
    }
  }
}

bool StreamRelay::Relay(RequestDelta& delta) {
  const auto found = shared_.places.find(OutputId(delta));
  if (found == shared_.places.end() || IsForHost(delta)) return false;
  Stream* stream = found->second.stream;
  RelayedOutput& output = stream->outputs[found->second.output];
  if (!delta.token_ids.empty()) Count(static_cast<int64_t>(delta.token_ids.size()), stream, &output);
  if (delta.text.empty()) return true;  // part of a character, or held back for a stop string
  ++shared_.totals[static_cast<size_t>(output.lane)].events;
  shared_.event.assign(output.prefix);
  AppendJsonString(delta.text, &shared_.event);
  shared_.event.append(output.suffix);
  Write(stream, shared_.event);
  return true;
}

void StreamRelay::Count(int64_t tokens, Stream* stream, RelayedOutput* output) {
  RelayTotals& totals = shared_.totals[static_cast<size_t>(output->lane)];
  const double now = Seconds();
  const double before = std::exchange(output->last_time, now);
  if (before > 0) {
    const auto edge = std::ranges::lower_bound(gap_edges_, now - before) - gap_edges_.begin();
    ++totals.gaps[static_cast<size_t>(edge)];
    totals.gap_seconds += now - before;
  }
  totals.tokens += tokens;
  stream->work.tokens += tokens;
}

void StreamRelay::Write(Stream* stream, std::string_view event) {
  stream->work.bytes += static_cast<int64_t>(event.size());
  std::string_view data = event;
  if (stream->chunked) {
    shared_.frame.clear();
    AppendChunk(event, &shared_.frame);
    data = shared_.frame;
  }
  const size_t sent = Send(stream->fd, data);
  if (sent == data.size()) return;
  stream->work.unsent = data.substr(sent);
  for (const RelayedOutput& output : stream->outputs) {
    shared_.places.erase(OutputId(output));
  }
  RequestDelta nudge;  // its host is to take it back
  nudge.request_id = stream->outputs.front().request_id;
  nudge.index = stream->outputs.front().index;
  shared_.news.push_back(std::move(nudge));
  Signal();
}

void StreamRelay::Signal() {
  if (!std::exchange(shared_.signalled, true)) Raise(news_fd_);
}

Result<uint64_t> StreamRelay::Attach(RelayedStream given) {
  UniqueFd fd(fcntl(given.fd, F_DUPFD_CLOEXEC, 0));
  if (fd.get() < 0) {
    return Status::ResourceExhausted("socket " + std::to_string(given.fd) +
                                     " cannot be duplicated: " + std::generic_category().message(errno));
  }
  if (given.outputs.empty()) return Status::InvalidArgument("a stream must have at least one output");
  const HostTurn turn(*this);
  for (const RelayedOutput& output : given.outputs) {
    const uint64_t id = OutputId(output);
    if (shared_.places.contains(id)) {
      return Status::InvalidArgument("output " + std::to_string(id) + " is in a stream already");
    }
    if (output.lane < 0 || output.lane >= kMostLanes) {
      return Status::InvalidArgument("lane must be from 0 to " + std::to_string(kMostLanes - 1) + ", got " +
                                     std::to_string(output.lane));
    }
    const auto lanes = static_cast<size_t>(output.lane) + 1;
    if (shared_.totals.size() < lanes) {
      RelayTotals none;
      none.gaps.resize(gap_edges_.size() + 1);
      shared_.totals.resize(lanes, none);
    }
  }
  auto stream = std::make_unique<Stream>(std::move(fd), given.chunked, std::move(given.outputs), RelayedWork{});
  for (size_t i = 0; i < stream->outputs.size(); ++i) {
    const RelayedOutput& output = stream->outputs[i];
    shared_.places[OutputId(output)] = {stream.get(), i};
  }
  if (!given.begin.empty()) Write(stream.get(), given.begin);
  for (RequestDelta& delta : std::exchange(shared_.news, {})) {
    if (!Relay(delta)) shared_.news.push_back(std::move(delta));
  }
  const uint64_t number = ++shared_.last_number;
  shared_.streams[number] = std::move(stream);
  return number;
}

RelayedWork StreamRelay::Detach(uint64_t number) {
  const HostTurn turn(*this);
  const auto found = shared_.streams.find(number);
  if (found == shared_.streams.end()) return {};
  const std::unique_ptr<Stream> stream = std::move(found->second);
  shared_.streams.erase(found);
  RelayedWork work = std::move(stream->work);
  for (const RelayedOutput& output : stream->outputs) {
    work.last_times.push_back(output.last_time);
    const auto place = shared_.places.find(OutputId(output));
    if (place != shared_.places.end() && place->second.stream == stream.get()) shared_.places.erase(place);
  }
  return work;
}

std::vector<RequestDelta> StreamRelay::Drain() {
  const HostTurn turn(*this);
  if (std::exchange(shared_.signalled, false)) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(news_fd_.get(), &count, sizeof(count));
  }
  return std::exchange(shared_.news, {});
}

std::vector<RelayTotals> StreamRelay::totals() const {
  const HostTurn turn(*this);
  return shared_.totals;
}

}  // namespace fastllm
