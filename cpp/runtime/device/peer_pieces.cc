#include "runtime/device/peer_pieces.h"

#include <exception>
#include <utility>

namespace fastllm::runtime {
namespace {

// Never 0, which is in memory that nobody has written to, and odd and even in turns.
uint32_t NextEpoch(uint32_t epoch) { return epoch == 0xffffffffu ? 2u : epoch + 1u; }

}  // namespace

PeerPieces::PeerPieces(const ops::DeviceApi& device, const PeerPieceBoxes& boxes, const NormFns& norms,
                       std::string name)
    : device_(device),
      boxes_(boxes),
      norms_(norms),
      name_(std::move(name)),
      stream_(device.CreateStream()),
      ready_(device.CreateEvent()) {
  for (Piece& piece : pieces_) piece.copied = device_.CreateEvent();
}

PeerPieces::~PeerPieces() {
  try {
    device_.Synchronize(stream_);
  } catch (const std::exception&) {
    // The failure that led here has been reported by the step that met it.
  }
  for (const Piece& piece : pieces_) device_.DestroyEvent(piece.copied);
  device_.DestroyEvent(ready_);
  device_.DestroyStream(stream_);
}

void PeerPieces::Prepare() {
  for (int32_t peer = 0; peer < boxes_.size; ++peer) {
    if (peer == boxes_.rank) continue;
    // Zeros over zeros.
    device_.Copy(RowAt(peer, boxes_.rank, 0, 0), RowAt(boxes_.rank, peer, 0, 0), boxes_.row_bytes, stream_);
    device_.SetWord(FlagOf(peer, boxes_.rank, 0, 0), 0, stream_);
  }
  device_.Synchronize(stream_);
}

bool PeerPieces::Fits(int64_t rows, int64_t hidden, CommType type) const {
  return type <= CommType::kBF16 && norms_[static_cast<size_t>(type)] != nullptr && rows <= boxes_.rows &&
         hidden * CommTypeSize(type) == boxes_.row_bytes;
}

int64_t PeerPieces::PartOf(int32_t box, int32_t from, uint32_t epoch) const {
  return int64_t{epoch & 1u} * (boxes_.size - 1) + (from < box ? from : from - 1);
}

char* PeerPieces::RowAt(int32_t box, int32_t from, uint32_t epoch, int64_t row) const {
  return static_cast<char*>(boxes_.boxes[box]) + (PartOf(box, from, epoch) * boxes_.rows + row) * boxes_.row_bytes;
}

uint32_t* PeerPieces::FlagOf(int32_t box, int32_t from, uint32_t epoch, int32_t piece) const {
  char* const flags =
      static_cast<char*>(boxes_.boxes[box]) + 2 * (int64_t{boxes_.size} - 1) * boxes_.rows * boxes_.row_bytes;
  return reinterpret_cast<uint32_t*>(flags) + 2 * PartOf(box, from, epoch) + piece;
}

Status PeerPieces::Check(const SumPiece& piece, int64_t rows, int64_t hidden, CommType type) const {
  if (piece.index < 0 || piece.index > 1 || piece.first_row < 0 || rows <= 0 ||
      !Fits(piece.first_row + rows, hidden, type)) {
    return Status::Internal(name_ + " has no sum of piece " + std::to_string(piece.index) + " of " +
                            std::to_string(rows) + " rows of " + std::to_string(hidden) + " from row " +
                            std::to_string(piece.first_row) + " on; its boxes have room for " +
                            std::to_string(boxes_.rows) + " of " + std::to_string(boxes_.row_bytes) + " bytes");
  }
  return Status::Ok();
}

Status PeerPieces::Begin(const ops::OpContext& context, const SumPiece& piece, const void* x, int64_t rows,
                         int64_t hidden, CommType type) {
  FASTLLM_RETURN_IF_ERROR(Check(piece, rows, hidden, type));
  Piece& p = pieces_[piece.index];
  if (p.x != nullptr) {
    return Status::Internal(name_ + " begins a sum of piece " + std::to_string(piece.index) + " before the last ended");
  }
  p = {NextEpoch(p.epoch), x, piece.first_row, rows, p.copied};
  device_.RecordEvent(ready_, context.stream);
  device_.AwaitEvent(ready_, stream_);
  for (int32_t k = 1; k < boxes_.size; ++k) {
    const int32_t peer = (boxes_.rank + k) % boxes_.size;
    device_.Copy(RowAt(peer, boxes_.rank, p.epoch, p.first_row), x, static_cast<size_t>(rows * boxes_.row_bytes),
                 stream_);
    device_.SetWord(FlagOf(peer, boxes_.rank, p.epoch, piece.index), p.epoch, stream_);
  }
  device_.RecordEvent(p.copied, stream_);
  return Status::Ok();
}

Status PeerPieces::End(const ops::OpContext& context, const SumPiece& piece, const ops::RmsNormParams& norm,
                       CommType type) {
  FASTLLM_RETURN_IF_ERROR(Check(piece, norm.num_tokens, norm.hidden, type));
  Piece& p = pieces_[piece.index];
  if (p.x != norm.x || p.first_row != piece.first_row || p.rows != norm.num_tokens) {
    return Status::Internal(name_ + " ends a sum of piece " + std::to_string(piece.index) + " that has not begun");
  }
  p.x = nullptr;
  ops::PeerPieceNormParams call;
  call.rank = boxes_.rank;
  call.size = boxes_.size;
  call.epoch = p.epoch;
  call.stop = boxes_.stop;
  call.norm = norm;
  for (int32_t peer = 0; peer < boxes_.size; ++peer) {
    if (peer == boxes_.rank) continue;
    call.parts[peer] = RowAt(boxes_.rank, peer, p.epoch, p.first_row);
    call.flags[peer] = FlagOf(boxes_.rank, peer, p.epoch, piece.index);
  }
  device_.AwaitEvent(p.copied, context.stream);  // the result may go where x is
  norms_[static_cast<size_t>(type)](call, context);
  return Status::Ok();
}

}  // namespace fastllm::runtime
