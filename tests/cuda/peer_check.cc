// peer_reduce with ranks that are streams: of one device, and of two where the machine has two that reach each other.
// Sums against float64 and, bit for bit, against the order of the ranks; alone and in graphs; then the time of a call
// inside a graph. On one device that is not the time over a link.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/contract/peer_reduce.h"
#include "support.h"

namespace fastllm::cuda_check {
namespace {

using ops::PeerReduceParams;

constexpr int64_t kCapacity = ops::PeerUnits(int64_t{512} << 10);
constexpr std::chrono::seconds kPatience{10};  // for the ranks to meet

// A rank: its device, stream and memory.
struct Rank {
  int device = 0;
  cudaStream_t stream = nullptr;
  Buffer box;
  Buffer epochs;
};

class Ranks {
 public:
  Ranks(int32_t size, const std::vector<int>& devices) {
    Must(cudaMallocHost(reinterpret_cast<void**>(&stop_), sizeof(*stop_)), "page-locked word");
    *stop_ = 0;
    for (int32_t r = 0; r < size; ++r) {
      Rank& rank = ranks_.emplace_back();
      rank.device = devices[r % devices.size()];
      Must(cudaSetDevice(rank.device), "set device");
      for (const int other : devices) Must(ops::CudaReachPeer(other) ? 0 : 1, "peer access");
      Must(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking), "stream");
      rank.box = Buffer(static_cast<size_t>(ops::PeerBoxBytes(size, kCapacity)));
      rank.box.Zero();
      rank.epochs = Buffer(static_cast<size_t>(ops::PeerBlocks(kCapacity)) * sizeof(uint32_t));
      rank.epochs.Zero();
      for (const DType t : kAllTypes) ops::CudaPeerReduce(t);  // loads the kernels of this device
      Must(cudaDeviceSynchronize(), "set-up");
    }
  }
  ~Ranks() {
    for (const Rank& rank : ranks_) cudaStreamDestroy(rank.stream);
    cudaFreeHost(stop_);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int32_t size() const { return static_cast<int32_t>(ranks_.size()); }
  const Rank& at(int32_t r) const { return ranks_[r]; }
  void Use(int32_t r) const { Must(cudaSetDevice(ranks_[r].device), "set device"); }

  PeerReduceParams Params(int32_t r, void* data, int64_t count, bool two_shots) const {
    PeerReduceParams p;
    p.data = data;
    p.count = count;
    p.rank = r;
    p.size = size();
    p.capacity = kCapacity;
    for (int32_t other = 0; other < size(); ++other) p.boxes[other] = ranks_[other].box.get();
    p.epochs = ranks_[r].epochs.as<uint32_t>();
    p.stop = stop_;
    p.two_shots = two_shots;
    return p;
  }

  // Until all streams are done; false when they are not in time, and have been stopped.
  bool Finish() const {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    bool in_time = true;
    for (int32_t r = 0; r < size(); ++r) {
      Use(r);
      while (cudaStreamQuery(ranks_[r].stream) == cudaErrorNotReady) {
        if (std::chrono::steady_clock::now() < until || !in_time) continue;
        *const_cast<volatile uint32_t*>(stop_) = 1;
        in_time = false;
      }
      Must(cudaStreamSynchronize(ranks_[r].stream), "a rank");
    }
    return in_time;
  }

 private:
  std::vector<Rank> ranks_;
  uint32_t* stop_ = nullptr;
};

// One message: what each rank brings, on its device, and what the sum is.
struct Message {
  std::vector<Buffer> data;
  std::vector<float> wanted;  // in the order of the ranks, in float32, rounded once
  std::vector<double> exact;
};

Message Make(const Ranks& ranks, DType t, int64_t count, uint64_t seed) {
  Message m;
  m.wanted.assign(static_cast<size_t>(count), 0.0f);
  m.exact.assign(static_cast<size_t>(count), 0.0);
  for (int32_t r = 0; r < ranks.size(); ++r) {
    auto values = Normal(static_cast<size_t>(count), seed * 16 + r);
    Round(values, t);
    for (size_t i = 0; i < values.size(); ++i) {
      m.wanted[i] = r == 0 ? values[i] : m.wanted[i] + values[i];
      m.exact[i] += values[i];
    }
    ranks.Use(r);
    m.data.push_back(UploadAs(values, t));
  }
  Round(m.wanted, t);
  return m;
}

void CheckMessage(Checks& c, const Ranks& ranks, const std::string& label, DType t, const Message& m) {
  for (int32_t r = 0; r < ranks.size(); ++r) {
    ranks.Use(r);
    const auto got = DownloadAs(m.data[r].get(), m.wanted.size(), t);
    c.ExpectTrue(label + " bits, rank " + std::to_string(r), got == m.wanted);
    if (r == 0) c.Expect(label, RelativeError(got, m.exact), Tolerance(t));
  }
}

std::string Label(const Ranks& ranks, size_t devices, DType t, int64_t count, bool two_shots) {
  return std::string("peer_reduce ") + Name(t) + " " + std::to_string(count) + " of " + std::to_string(ranks.size()) +
         " ranks on " + std::to_string(devices) + " devices" + (two_shots ? ", two shots" : "");
}

// Calls of many sizes one behind another, each rank's on its stream.
void CheckSums(Checks& c, const Ranks& ranks, size_t devices, DType t) {
  struct Call {
    int64_t count;
    bool two_shots;
    Message message;
  };
  std::vector<Call> calls;
  for (const int64_t count : {1, 3, 4, 1001, 4096, 32768, 8 * 5120 + 2}) {
    if (count * ops::DTypeSize(t) > kCapacity * ops::kPeerUnitBytes) continue;
    for (const bool two_shots : {false, true}) calls.push_back({count, two_shots, Make(ranks, t, count, calls.size())});
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

// A graph for each rank; launch(rank) is captured in it.
class Graphs {
 public:
  Graphs(const Ranks& ranks, const std::function<void(int32_t)>& launch) : ranks_(ranks) {
    for (int32_t r = 0; r < ranks.size(); ++r) {
      ranks.Use(r);
      cudaGraph_t graph;
      Must(cudaStreamBeginCapture(ranks.at(r).stream, cudaStreamCaptureModeThreadLocal), "begin capture");
      launch(r);
      Must(cudaStreamEndCapture(ranks.at(r).stream, &graph), "end capture");
      Must(cudaGraphInstantiate(&execs_.emplace_back(), graph, 0), "instantiate");
      Must(cudaGraphDestroy(graph), "destroy graph");
      Must(cudaGraphUpload(execs_.back(), ranks.at(r).stream), "upload");
      Must(cudaStreamSynchronize(ranks.at(r).stream), "upload");
    }
  }
  ~Graphs() {
    for (const cudaGraphExec_t exec : execs_) cudaGraphExecDestroy(exec);
  }
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  void Launch(int32_t r) const {
    ranks_.Use(r);
    Must(cudaGraphLaunch(execs_[r], ranks_.at(r).stream), "launch graph");
  }

 private:
  const Ranks& ranks_;
  std::vector<cudaGraphExec_t> execs_;
};

// The second replay adds up what the first has left, which is the same on all ranks.
void CheckGraph(Checks& c, const Ranks& ranks, size_t devices, DType t) {
  const int64_t count = 4096;
  std::vector<Message> messages;
  for (uint64_t i = 0; i < 6; ++i) messages.push_back(Make(ranks, t, count, 100 + i));
  const ops::PeerReduceFn reduce = ops::CudaPeerReduce(t);
  const Graphs graphs(ranks, [&](int32_t r) {
    for (size_t i = 0; i < messages.size(); ++i) {
      reduce(ranks.Params(r, messages[i].data[r].get(), count, i % 2 == 1), {ranks.at(r).stream, 1});
    }
  });
  for (int replay = 0; replay < 2; ++replay) {
    for (int32_t r = 0; r < ranks.size(); ++r) graphs.Launch(r);
  }
  c.ExpectTrue(std::string("peer_reduce ") + Name(t) + " in graphs: the ranks meet", ranks.Finish());
  for (Message& m : messages) {
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

void Time(const Ranks& ranks, size_t devices, int64_t bytes, bool two_shots) {
  constexpr int kCalls = 200;
  constexpr int kReplays = 9;
  const int64_t count = bytes / ops::DTypeSize(DType::kBF16);
  std::vector<Buffer> data;
  for (int32_t r = 0; r < ranks.size(); ++r) {
    ranks.Use(r);
    data.emplace_back(static_cast<size_t>(bytes)).Zero();
  }
  const ops::PeerReduceFn reduce = ops::CudaPeerReduce(DType::kBF16);
  const Graphs graphs(ranks, [&](int32_t r) {
    for (int i = 0; i < kCalls; ++i) reduce(ranks.Params(r, data[r].get(), count, two_shots), {ranks.at(r).stream, 1});
  });
  cudaEvent_t begin, end;
  ranks.Use(0);
  Must(cudaEventCreate(&begin), "event");
  Must(cudaEventCreate(&end), "event");
  std::vector<float> ms;
  bool met = true;
  for (int i = 0; i < kReplays && met; ++i) {
    for (int32_t r = ranks.size() - 1; r > 0; --r) graphs.Launch(r);
    ranks.Use(0);
    Must(cudaEventRecord(begin, ranks.at(0).stream), "record");
    graphs.Launch(0);
    Must(cudaEventRecord(end, ranks.at(0).stream), "record");
    met = ranks.Finish();
    Must(cudaEventElapsedTime(&ms.emplace_back(), begin, end), "elapsed");
  }
  std::nth_element(ms.begin(), ms.begin() + ms.size() / 2, ms.end());
  std::printf("peer_reduce bf16 %lld bytes, %d ranks on %zu devices, %s: %.2f us a call in a graph%s\n",
              static_cast<long long>(bytes), ranks.size(), devices, two_shots ? "two shots" : "one shot",
              ms[ms.size() / 2] * 1e3 / kCalls, met ? "" : " (stopped: the ranks did not meet)");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

void CheckDevices(Checks& c, const std::vector<int>& devices) {
  // Streams of one device share its queues of work, of which there are eight: kernels that wait for each other need one
  // each. Of more ranks the protocol is tested on threads.
  for (const int32_t size : {2, 3, 4}) {
    const Ranks ranks(size, devices);
    for (const DType t : kAllTypes) {
      CheckSums(c, ranks, devices.size(), t);
      CheckGraph(c, ranks, devices.size(), t);
    }
    if (c.small) continue;
    for (const int64_t bytes : {8 << 10, 64 << 10, 256 << 10}) {
      for (const bool two_shots : {false, true}) Time(ranks, devices.size(), bytes, two_shots);
    }
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
