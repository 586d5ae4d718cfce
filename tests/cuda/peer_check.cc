// peer_reduce with ranks that are streams: of one device, and of two where the machine has two that reach each other.
// Sums against float64 and, bit for bit, against the order of the ranks; alone and in graphs; sums with residual and
// norm; then the time of a call inside a graph. On one device that is not the time over a link.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "ops/contract/peer_reduce.h"
#include "peer_ranks.h"
#include "support.h"

namespace fastllm::cuda_check {
namespace {

void CheckMessage(Checks& c, const PeerRanks& ranks, const std::string& label, DType t, const PeerMessage& m) {
  for (int32_t r = 0; r < ranks.size(); ++r) {
    ranks.Use(r);
    const auto got = DownloadAs(m.data[r].get(), m.wanted.size(), t);
    c.ExpectTrue(label + " bits, rank " + std::to_string(r), got == m.wanted);
    // The error of few values may be that of one.
    const double limit = m.wanted.size() < 64 ? 1.35 * Tolerance(t) : Tolerance(t);
    if (r == 0) c.Expect(label, RelativeError(got, m.exact), limit);
  }
}

std::string Label(const PeerRanks& ranks, size_t devices, DType t, int64_t count, bool two_shots) {
  return std::string("peer_reduce ") + Name(t) + " " + std::to_string(count) + " of " + std::to_string(ranks.size()) +
         " ranks on " + std::to_string(devices) + " devices" + (two_shots ? ", two shots" : "");
}

// Calls of many sizes one behind another, each rank's on its stream.
void CheckSums(Checks& c, const PeerRanks& ranks, size_t devices, DType t) {
  struct Call {
    int64_t count;
    bool two_shots;
    PeerMessage message;
  };
  std::vector<Call> calls;
  for (const int64_t count : {1, 3, 4, 1001, 4096, 32768, 8 * 5120 + 2}) {
    if (count * ops::DTypeSize(t) > kPeerCapacity * ops::kPeerUnitBytes) continue;
    for (const bool two_shots : {false, true})
      calls.push_back({count, two_shots, MakePeerMessage(ranks, t, count, calls.size())});
  }
  const ops::PeerReduceFn reduce = ops::CudaPeerReduce(t);
  for (const Call& call : calls) {
    for (int32_t r = 0; r < ranks.size(); ++r) {
      ranks.Use(r);
      reduce(ranks.Params(r, call.message.data[r].get(), call.count, call.two_shots), {ranks.at(r).stream, 1});
    }
  }
  c.ExpectTrue(std::string("peer_reduce ") + Name(t) + ": the ranks meet", ranks.Finish());
  for (const Call& call : calls) {
    CheckMessage(c, ranks, Label(ranks, devices, t, call.count, call.two_shots), t, call.message);
  }
}

// The second replay adds up what the first has left, which is the same on all ranks.
void CheckGraph(Checks& c, const PeerRanks& ranks, size_t devices, DType t) {
  const int64_t count = 4096;
  std::vector<PeerMessage> messages;
  for (uint64_t i = 0; i < 6; ++i) messages.push_back(MakePeerMessage(ranks, t, count, 100 + i));
  const ops::PeerReduceFn reduce = ops::CudaPeerReduce(t);
  const PeerGraphs graphs(ranks, [&](int32_t r) {
    for (size_t i = 0; i < messages.size(); ++i) {
      reduce(ranks.Params(r, messages[i].data[r].get(), count, i % 2 == 1), {ranks.at(r).stream, 1});
    }
  });
  for (int replay = 0; replay < 2; ++replay) {
    for (int32_t r = 0; r < ranks.size(); ++r) graphs.Launch(r);
  }
  c.ExpectTrue(std::string("peer_reduce ") + Name(t) + " in graphs: the ranks meet", ranks.Finish());
  for (PeerMessage& m : messages) {
    for (size_t i = 0; i < m.wanted.size(); ++i) {
      float sum = m.wanted[i];
      for (int32_t r = 1; r < ranks.size(); ++r) sum += m.wanted[i];
      m.exact[i] = double{m.wanted[i]} * ranks.size();
      m.wanted[i] = sum;
    }
    Round(m.wanted, t);
    CheckMessage(c, ranks, Label(ranks, devices, t, count, false) + " in a graph, twice", t, m);
  }
}

void Time(const PeerRanks& ranks, size_t devices, int64_t bytes, bool two_shots) {
  const int64_t count = bytes / ops::DTypeSize(DType::kBF16);
  std::vector<Buffer> data;
  for (int32_t r = 0; r < ranks.size(); ++r) {
    ranks.Use(r);
    data.emplace_back(static_cast<size_t>(bytes)).Zero();
  }
  const ops::PeerReduceFn reduce = ops::CudaPeerReduce(DType::kBF16);
  TimePeerCalls(ranks,
                "peer_reduce bf16 " + std::to_string(bytes) + " bytes, " + std::to_string(ranks.size()) + " ranks on " +
                    std::to_string(devices) + " devices, " + (two_shots ? "two shots" : "one shot"),
                [&](int32_t r) { reduce(ranks.Params(r, data[r].get(), count, two_shots), {ranks.at(r).stream, 1}); });
}

void CheckDevices(Checks& c, const std::vector<int>& devices) {
  CheckPeerWideRows(c, devices);
  CheckPeerStop(c, devices);
  // Streams of one device share its queues of work, of which there are eight: kernels that wait for each other need one
  // each. Of more ranks the protocol is tested on threads.
  for (const int32_t size : {2, 3, 4}) {
    const PeerRanks ranks(size, devices);
    // On a device that ranks share, only what fits beside the others, so that they can meet.
    const bool links = static_cast<int32_t>(devices.size()) == size;
    for (const DType t : kAllTypes) {
      CheckSums(c, ranks, devices.size(), t);
      CheckGraph(c, ranks, devices.size(), t);
      CheckPeerNorms(c, ranks, t, links);
    }
    CheckPeerArgmax(c, ranks);
    if (c.small) continue;
    for (const int64_t bytes : {8 << 10, 64 << 10, 256 << 10, 512 << 10, 2 << 20}) {
      if (!links && bytes > 256 << 10) continue;
      for (const bool two_shots : {false, true}) Time(ranks, devices.size(), bytes, two_shots);
    }
    TimePeerNorms(ranks, devices.size(), links);
    if (links) TimePeerArgmax(ranks);
  }
}

}  // namespace

void CheckPeers(Checks& c) {
  int before = 0, count = 0, reaches = 0;
  Must(cudaGetDevice(&before), "get device");
  Must(cudaGetDeviceCount(&count), "count devices");
  CheckDevices(c, {before});
  const int other = before == 0 ? 1 : 0;
  if (count > 1) Must(cudaDeviceCanAccessPeer(&reaches, before, other), "peer access");
  if (reaches != 0) {
    CheckDevices(c, {before, other});
  } else {
    std::printf("peers: no second device that this one reaches; not checked over a link\n");
  }
  Must(cudaSetDevice(before), "set device");
}

}  // namespace fastllm::cuda_check
