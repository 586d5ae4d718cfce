// Sums with a norm in two pieces (Communicator::BeginSumNorm()): the ranks copy their parts to each other on a stream
// beside that of the step, which takes no room from the kernels that run meanwhile.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "fastllm/status.h"
#include "ops/contract/device.h"
#include "ops/contract/peer_piece.h"
#include "runtime/comm/communicator.h"

namespace fastllm::runtime {

struct PeerPieceBoxes {
  int32_t rank = 0;
  int32_t size = 2;                            // up to ops::kMostPeers
  int64_t rows = 0;                            // of a step: what there is room for
  int64_t row_bytes = 0;                       // of each
  std::array<void*, ops::kMostPeers> boxes{};  // of every rank, as this one reaches it: Bytes(), zeroed once
  const uint32_t* stop = nullptr;              // as ops::PeerReduceParams has it

  // For sums in turns (two), the rows of each peer and a flag for each piece of them.
  static int64_t Bytes(int32_t size, int64_t rows, int64_t row_bytes) {
    return 2 * (int64_t{size} - 1) * (rows * row_bytes + 2 * static_cast<int64_t>(sizeof(uint32_t)));
  }
};

// On the thread of its rank, all calls as Communicator says. A rank begins a sum of a piece after it has ended the one
// before, for which each peer had begun that, and so had ended the one before that: two turns of boxes are enough.
class PeerPieces {
 public:
  using NormFns = std::array<ops::PeerPieceNormFn, 3>;  // by ops::DType

  // `name` is the rank's, for errors.
  PeerPieces(const ops::DeviceApi& device, const PeerPieceBoxes& boxes, const NormFns& norms, std::string name);
  ~PeerPieces();
  PeerPieces(const PeerPieces&) = delete;
  PeerPieces& operator=(const PeerPieces&) = delete;

  // Makes what a first call would have to set up, once all peers have their boxes; returns when it is done.
  void Prepare();

  bool Fits(int64_t rows, int64_t hidden, CommType type) const;
  Status Begin(const ops::OpContext& context, const SumPiece& piece, const void* x, int64_t rows, int64_t hidden,
               CommType type);
  Status End(const ops::OpContext& context, const SumPiece& piece, const ops::RmsNormParams& p, CommType type);

 private:
  // A piece of the sum that is under way, if one is.
  struct Piece {
    uint32_t epoch = 0;
    const void* x = nullptr;  // null: none is
    int64_t first_row = 0;
    int64_t rows = 0;
    void* copied = nullptr;  // an event: x has been read
  };
  Status Check(const SumPiece& piece, int64_t rows, int64_t hidden, CommType type) const;
  // The part of a box that rank `from` fills in a turn.
  int64_t PartOf(int32_t box, int32_t from, uint32_t epoch) const;
  char* RowAt(int32_t box, int32_t from, uint32_t epoch, int64_t row) const;
  uint32_t* FlagOf(int32_t box, int32_t from, uint32_t epoch, int32_t piece) const;

  const ops::DeviceApi& device_;
  const PeerPieceBoxes boxes_;
  const NormFns norms_;
  const std::string name_;
  void* const stream_;
  void* const ready_;  // an event: x has been written
  Piece pieces_[2];
};

}  // namespace fastllm::runtime
