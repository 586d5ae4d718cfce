// StreamRelay.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/engine_class.h"
#include "bindings/errors.h"
#include "core/stream/stream_relay.h"

namespace py = pybind11;

namespace fastllm::bindings {
namespace {

using EndTuple = std::tuple<std::string, std::string, std::string, std::string>;
using OutputTuple = std::tuple<uint64_t, int32_t, std::string, std::string, double, int32_t, std::optional<EndTuple>>;

uint64_t Attach(StreamRelay& relay, int fd, bool chunked, std::vector<OutputTuple> outputs, std::string begin) {
  RelayedStream stream{fd, chunked, {}, std::move(begin)};
  stream.outputs.reserve(outputs.size());
  for (auto& [request_id, index, prefix, suffix, last_time, lane, end] : outputs) {
    RelayedOutput& output =
        stream.outputs.emplace_back(request_id, index, std::move(prefix), std::move(suffix), last_time, lane);
    if (end) output.end = std::make_from_tuple<RelayedEnd>(std::move(*end));
  }
  return ValueOrThrow(relay.Attach(std::move(stream)));
}

py::tuple Detach(StreamRelay& relay, uint64_t number) {
  const RelayedWork work = relay.Detach(number);
  return py::make_tuple(py::bytes(work.unsent), work.tokens, work.bytes, work.last_times, work.ended);
}

}  // namespace

// The GIL stays held: no call waits for more than one write to a socket that has room, or for a thread that needs it.
void BindStreamRelay(py::module_& m) {
  py::class_<RelayTotals>(m, "RelayTotals", "Counts of the streams of one lane.")
      .def_readonly("tokens", &RelayTotals::tokens)
      .def_readonly("events", &RelayTotals::events)
      .def_readonly("gap_seconds", &RelayTotals::gap_seconds, "The sum of all gaps between two events of an output.")
      .def_readonly("gaps", &RelayTotals::gaps, "How many gaps up to each edge, and above the last.");
  py::class_<StreamRelay>(m, "StreamRelay",
                          "Writes the text of running streams to their sockets, in a thread of its own. Takes over "
                          "Engine.drain().")
      .def(py::init([](Engine* engine, std::vector<double> gap_edges, int64_t round_us, int64_t per_output_us) {
             const RelayPace pace{std::chrono::microseconds(round_us), std::chrono::microseconds(per_output_us)};
             return std::make_unique<StreamRelay>(engine, std::move(gap_edges), pace);
           }),
           py::arg("engine"), py::arg("gap_edges"), py::arg("round_us"), py::arg("per_output_us"),
           py::keep_alive<1, 2>(),
           "Least time from one look at the engine's news to the next: round_us, and per_output_us for each output of "
           "which the last look brought news.")
      .def(
          "attach", &Attach, py::arg("fd"), py::arg("chunked"), py::arg("outputs"), py::arg("begin"),
          "Takes a stream over and returns its number. outputs: (handle, index, prefix, suffix, time of the last "
          "tokens, lane, end); an event is prefix, the text as JSON, suffix. end: None when the caller writes the last "
          "event of an output, else (what is behind the text, what is in place of prefix, text and that when there is "
          "no text, what is between finish_reason and stop_reason, what is behind it). begin: bytes to write first.")
      .def("detach", &Detach, py::arg("number"),
           "Gives a stream back: (bytes that the socket did not take, tokens, bytes of events, times of the last "
           "tokens, whether its last event went out), both by output.")
      .def("drain", &StreamRelay::Drain, "What is for the host; resets event_fd.")
      .def_property_readonly("event_fd", &StreamRelay::event_fd,
                             "Readable while drain() has something, and when the engine has ended.")
      .def("totals", &StreamRelay::totals, "RelayTotals by lane, up to the last one that was used.");
}

}  // namespace fastllm::bindings
