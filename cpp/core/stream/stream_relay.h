// StreamRelay: carries the text of running streams from the engine to their sockets in a thread of its own, so that a
// token costs the host's event loop nothing. The host keeps all else: heads, first and last events, errors.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/unique_fd.h"
#include "fastllm/engine.h"
#include "fastllm/output.h"
#include "fastllm/status.h"

namespace fastllm {

// How an output's last event is written: `prefix` of the output, the text as a JSON string and `text`, or `no_text` in
// place of all that when there is none; then the name of the finish_reason, `stop`, the stop_reason as JSON, `tail`.
struct RelayedEnd {
  std::string text;
  std::string no_text;
  std::string stop;
  std::string tail;  // empty: the host writes the last event
};

// One output of a request in a stream. An event is `prefix`, the new text as a JSON string, `suffix`.
struct RelayedOutput {
  uint64_t request_id = 0;  // the handle of Engine::Submit()
  int32_t index = 0;        // of the output, below SamplingParams::n
  std::string prefix;
  std::string suffix;
  double last_time = 0;  // when its last tokens went out, in seconds of the steady clock; 0: there were none
  int32_t lane = 0;      // which of StreamRelay::totals() it counts for, below kMostLanes
  RelayedEnd end = {};
};

// A stream that the relay is to write to.
struct RelayedStream {
  int fd = -1;           // a connected stream socket; the relay uses a duplicate of it
  bool chunked = false;  // each event is a chunk of HTTP's chunked coding
  std::vector<RelayedOutput> outputs;
  std::string begin;  // an event, or several, to be written first as it is; may be empty
};

// What the relay did for a stream.
struct RelayedWork {
  std::string unsent;  // bytes that the socket did not take: they come before anything that the host writes
  int64_t tokens = 0;
  int64_t bytes = 0;               // of events, without their coding, those that are unsent included
  std::vector<double> last_times;  // as RelayedOutput::last_time, in the order of RelayedStream::outputs
  std::vector<bool> ended;         // in the same order: its last event went out
};

// Counts of streams since the start.
struct RelayTotals {
  int64_t tokens = 0;
  int64_t events = 0;
  double gap_seconds = 0;     // the sum of all gaps
  std::vector<int64_t> gaps;  // between two events of an output: how many up to each edge, and above the last
};

// Least time from one look at the engine's news to the next: `round`, and `per_output` for each output of which the
// last look brought news. What comes within it is joined, so that steps shorter than anybody can see do not make an
// event each, and many streams do not make more events than clients can read.
struct RelayPace {
  std::chrono::microseconds round{0};
  std::chrono::microseconds per_output{0};
};

// Takes over Engine::Drain(), which nobody else may call then. News of an output that is in a stream is written by the
// relay; what else the host has to say of it, and of every other output, comes from Drain() here. That is news with
// logprobs, and the end of an output: whole where the relay does not know how to write it (RelayedOutput::end; errors
// and aborts always), else without tokens and text, which have been written. When a socket does not take all bytes at
// once, or is broken, the relay leaves the stream to the host: what comes from then on is in Drain(), beginning with a
// delta without tokens.
//
// Thread-safe. A call waits for one write to the stream that it is about at most, and sockets are never waited for.
class StreamRelay {
 public:
  static constexpr int32_t kMostLanes = 64;

  // `engine` outlives the relay. `gap_edges`: upper edges of RelayTotals::gaps in seconds, ascending. Throws
  // std::system_error when the process is out of threads or file descriptors.
  StreamRelay(Engine* engine, std::vector<double> gap_edges, RelayPace pace = {});
  ~StreamRelay();
  StreamRelay(const StreamRelay&) = delete;
  StreamRelay& operator=(const StreamRelay&) = delete;

  // Takes a stream over and returns its number, never 0. What Drain() has returned before of its outputs is written, or
  // part of `begin`; what is still pending for Drain() is the relay's now. kInvalidArgument when an output is in a
  // stream already or its lane is none, kResourceExhausted when the process is out of file descriptors.
  Result<uint64_t> Attach(RelayedStream stream);

  // Gives a stream back: the relay writes no more of it. An unknown number gives nothing.
  RelayedWork Detach(uint64_t number);

  // What is for the host; resets event_fd(). Does not wait.
  std::vector<RequestDelta> Drain();
  // Readable while Drain() has something, and when the engine has ended.
  int event_fd() const { return news_fd_.get(); }

  // By lane, up to the last one that was used.
  std::vector<RelayTotals> totals() const;

 private:
  struct Stream;
  struct Place {
    std::shared_ptr<Stream> stream;
    size_t output = 0;
  };
  struct Shared {
    std::unordered_map<uint64_t, std::shared_ptr<Stream>> streams;  // by number
    std::unordered_map<uint64_t, Place> places;                     // by the output's own id: handle + index
    std::vector<RequestDelta> news;                                 // for the host
    bool signalled = false;
    uint64_t last_number = 0;
    std::vector<RelayTotals> totals;  // by lane
  };

  void Run() noexcept;
  void Carry();
  void Handle(RequestDelta* delta);
  void ToHost(RequestDelta* delta);
  // Under the stream's mutex.
  void Write(Stream* stream, size_t output, const RequestDelta& delta);
  void Send(Stream* stream, std::string_view event);
  void Count(int32_t lane, double gap, const RequestDelta& delta);  // gap < 0: there is none
  // Under mutex_.
  Status Check(const RelayedStream& stream) const;
  void TakePending(const Stream& stream, std::vector<std::pair<size_t, RequestDelta>>* pending);
  void Remove(const Stream& stream);
  void Signal();

  Engine* const engine_;
  const std::vector<double> gap_edges_;
  const RelayPace pace_;
  const UniqueFd news_fd_;
  const UniqueFd stop_fd_;
  const pid_t pid_ = getpid();
  // Held for looks into tables alone. A stream has a mutex of its own, held while something is written to it and taken
  // before this one where both are.
  mutable std::mutex mutex_;
  Shared shared_;
  std::thread thread_;
};

}  // namespace fastllm
