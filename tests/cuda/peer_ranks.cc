#include "peer_ranks.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "ops/table/device.h"

namespace fastllm::cuda_check {
namespace {

constexpr std::chrono::seconds kPatience{10};  // for the ranks to meet
constexpr int kTimedCalls = 200;               // in a graph

}  // namespace

PeerRanks::PeerRanks(int32_t size, const std::vector<int>& devices, int64_t row_bytes) : row_bytes_(row_bytes) {
  Must(cudaMallocHost(reinterpret_cast<void**>(&stop_), sizeof(*stop_)), "page-locked word");
  *stop_ = 0;
  for (int32_t r = 0; r < size; ++r) {
    PeerRank& rank = ranks_.emplace_back();
    rank.device = devices[r % devices.size()];
    Must(cudaSetDevice(rank.device), "set device");
    for (const int other : devices) Must(ops::CudaReachPeer(other) ? 0 : 1, "peer access");
    Must(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking), "stream");
    rank.box = Buffer(static_cast<size_t>(ops::PeerBoxBytes(size, kPeerCapacity)));
    rank.box.Zero();
    rank.epochs = Buffer(static_cast<size_t>(ops::PeerBlocks(kPeerCapacity)) * sizeof(uint32_t));
    rank.epochs.Zero();
    if (size == 2) {
      rank.rows_box = Buffer(static_cast<size_t>(ops::PeerRowsBytes(size, kPeerRows, row_bytes)));
      rank.rows_box.Zero();
      rank.rows_epochs = Buffer(kPeerRows * sizeof(uint32_t));
      rank.rows_epochs.Zero();
      rank.piece_box = Buffer(2 * kPieceBytes + 2 * sizeof(uint32_t));
      rank.piece_box.Zero();
    }
    for (const DType t : kAllTypes) {  // loads the kernels of this device
      ops::CudaPeerReduce(t);
      ops::CudaPeerReduceNorm(t);
      ops::CudaPeerRowsNorm(t);
      ops::CudaPeerPieceNorm(t);
    }
    ops::CudaPeerArgmax();
    Must(cudaDeviceSynchronize(), "set-up");
  }
}

PeerRanks::~PeerRanks() {
  for (const PeerRank& rank : ranks_) cudaStreamDestroy(rank.stream);
  cudaFreeHost(stop_);
}

void PeerRanks::Use(int32_t r) const { Must(cudaSetDevice(ranks_[r].device), "set device"); }

ops::PeerReduceParams PeerRanks::Params(int32_t r, void* data, int64_t count, bool two_shots) const {
  ops::PeerReduceParams p;
  p.data = data;
  p.count = count;
  p.rank = r;
  p.size = size();
  p.capacity = kPeerCapacity;
  for (int32_t other = 0; other < size(); ++other) p.boxes[other] = ranks_[other].box.get();
  p.epochs = ranks_[r].epochs.as<uint32_t>();
  p.stop = stop_;
  p.two_shots = two_shots;
  return p;
}

ops::PeerRowsBoxes PeerRanks::Rows(int32_t r) const {
  ops::PeerRowsBoxes b{r, size(), kPeerRows, row_bytes_};
  for (int32_t other = 0; other < size(); ++other) b.boxes[other] = ranks_[other].rows_box.get();
  b.epochs = ranks_[r].rows_epochs.as<uint32_t>();
  b.stop = stop_;
  return b;
}

ops::PeerPieceNormParams PeerRanks::Piece(int32_t r, const void* x, size_t bytes, uint32_t epoch) const {
  const ops::DeviceApi& device = *ops::CudaDevice();
  const int32_t other = 1 - r;
  const size_t turn = epoch % 2;
  const auto part = [&](int32_t box) { return ranks_[box].piece_box.as<char>() + turn * kPieceBytes; };
  const auto flag = [&](int32_t box) {
    return reinterpret_cast<uint32_t*>(ranks_[box].piece_box.as<char>() + 2 * kPieceBytes) + turn;
  };
  device.Copy(part(other), x, bytes, ranks_[r].stream);
  device.SetWord(flag(other), epoch, ranks_[r].stream);
  ops::PeerPieceNormParams p;
  p.rank = r;
  p.parts[other] = part(r);
  p.flags[other] = flag(r);
  p.epoch = epoch;
  p.stop = stop_;
  return p;
}

void PeerRanks::Stop() const { *const_cast<volatile uint32_t*>(stop_) = 1; }

bool PeerRanks::Finish() const {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  bool in_time = true;
  for (int32_t r = 0; r < size(); ++r) {
    Use(r);
    while (cudaStreamQuery(ranks_[r].stream) == cudaErrorNotReady) {
      if (std::chrono::steady_clock::now() < until || !in_time) continue;
      Stop();
      in_time = false;
    }
    Must(cudaStreamSynchronize(ranks_[r].stream), "a rank");
  }
  return in_time;
}

PeerMessage MakePeerMessage(const PeerRanks& ranks, DType t, int64_t count, uint64_t seed) {
  PeerMessage m;
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

PeerGraphs::PeerGraphs(const PeerRanks& ranks, const std::function<void(int32_t)>& launch) : ranks_(ranks) {
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

PeerGraphs::~PeerGraphs() {
  for (const cudaGraphExec_t exec : execs_) cudaGraphExecDestroy(exec);
}

void PeerGraphs::Launch(int32_t r) const {
  ranks_.Use(r);
  Must(cudaGraphLaunch(execs_[r], ranks_.at(r).stream), "launch graph");
}

void TimePeerCalls(const PeerRanks& ranks, const std::string& label, const std::function<void(int32_t)>& launch) {
  constexpr int kReplays = 9;
  const PeerGraphs graphs(ranks, [&](int32_t r) {
    for (int i = 0; i < kTimedCalls; ++i) launch(r);
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
  std::printf("%s: %.2f us a call in a graph%s\n", label.c_str(), ms[ms.size() / 2] * 1e3 / kTimedCalls,
              met ? "" : " (stopped: the ranks did not meet)");
  std::fflush(stdout);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

}  // namespace fastllm::cuda_check
