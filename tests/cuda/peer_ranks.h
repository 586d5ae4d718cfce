// What the checks of sums over ranks share: ranks that are streams of one device or of several, messages, graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/contract/peer_argmax.h"
#include "ops/contract/peer_piece.h"
#include "ops/contract/peer_reduce.h"
#include "ops/contract/peer_rows.h"
#include "support.h"

namespace fastllm::cuda_check {

inline constexpr int64_t kPeerCapacity = ops::PeerUnits(int64_t{2} << 20);
inline constexpr size_t kPieceBytes = size_t{4096} * 8192;
inline constexpr int64_t kPeerRows = 8192, kPeerRowBytes = 8192;  // of the boxes for many rows, if not said otherwise

// A rank: its device, stream and memory.
struct PeerRank {
  int device = 0;
  cudaStream_t stream = nullptr;
  Buffer box;
  Buffer epochs;
  Buffer rows_box;  // where there are two ranks
  Buffer rows_epochs;
  Buffer piece_box;  // likewise: the other's rows, of calls in turns, and their flags
};

class PeerRanks {
 public:
  explicit PeerRanks(int32_t size, const std::vector<int>& devices, int64_t row_bytes = kPeerRowBytes);
  ~PeerRanks();
  PeerRanks(const PeerRanks&) = delete;
  PeerRanks& operator=(const PeerRanks&) = delete;

  int32_t size() const { return static_cast<int32_t>(ranks_.size()); }
  const PeerRank& at(int32_t r) const { return ranks_[r]; }
  void Use(int32_t r) const;  // its device becomes the current one

  ops::PeerReduceParams Params(int32_t r, void* data, int64_t count, bool two_shots) const;
  ops::PeerRowsBoxes Rows(int32_t r) const;
  // Of two ranks: copies x, rows of `bytes` in all, to the other and says so. The rest of the parameters is the norm.
  ops::PeerPieceNormParams Piece(int32_t r, const void* x, size_t bytes, uint32_t epoch) const;

  // Nobody waits any more.
  void Stop() const;
  // Until all streams are done; false when they are not in time, and have been stopped.
  bool Finish() const;

 private:
  const int64_t row_bytes_;
  std::vector<PeerRank> ranks_;
  uint32_t* stop_ = nullptr;
};

// One message: what each rank brings, on its device, and what the sum is.
struct PeerMessage {
  std::vector<Buffer> data;
  std::vector<float> wanted;  // in the order of the ranks, in float32, rounded once
  std::vector<double> exact;
};
PeerMessage MakePeerMessage(const PeerRanks& ranks, DType t, int64_t count, uint64_t seed);

// A graph for each rank; launch(rank) is captured in it.
class PeerGraphs {
 public:
  PeerGraphs(const PeerRanks& ranks, const std::function<void(int32_t)>& launch);
  ~PeerGraphs();
  PeerGraphs(const PeerGraphs&) = delete;
  PeerGraphs& operator=(const PeerGraphs&) = delete;

  void Launch(int32_t r) const;

 private:
  const PeerRanks& ranks_;
  std::vector<cudaGraphExec_t> execs_;
};

// Prints the time of a call, launch(rank), of many in a graph: the median of the replays.
void TimePeerCalls(const PeerRanks& ranks, const std::string& label, const std::function<void(int32_t)>& launch);

// Sums with residual and norm (peer_norm_check.cc). whole_devices: each rank has one of its own.
void CheckPeerWideRows(Checks& c, const std::vector<int>& devices);
void CheckPeerNorms(Checks& c, const PeerRanks& ranks, DType t, bool whole_devices);
void TimePeerNorms(const PeerRanks& ranks, size_t devices, bool whole_devices);

// That ranks which wait for one that does not come end when they are stopped.
void CheckPeerStop(Checks& c, const std::vector<int>& devices);

// peer_argmax (peer_argmax_check.cc).
void CheckPeerArgmax(Checks& c, const PeerRanks& ranks);
void TimePeerArgmax(const PeerRanks& ranks);

}  // namespace fastllm::cuda_check
