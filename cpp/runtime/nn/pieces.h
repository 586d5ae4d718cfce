// Rows of a step in two pieces, where sums over ranks are cut (ForwardContext::first_piece).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "core/base/check.h"
#include "runtime/nn/context.h"
#include "runtime/nn/rms_norm.h"
#include "runtime/tensor/tensors.h"

namespace fastllm::runtime {

// Where ctx cuts sums and holds all rows: work(context, first row, rows) of one piece and then of the other, and true.
// Else false, and nothing is done.
template <typename Work>
bool InPieces(const ForwardContext& ctx, int64_t rows, const Work& work) {
  if (ctx.first_piece == 0 || ctx.piece.some()) return false;
  FASTLLM_CHECK(ctx.first_piece > 0 && ctx.first_piece < rows,
                "a first piece of " + std::to_string(ctx.first_piece) + " of " + std::to_string(rows) + " rows");
  ForwardContext piece = ctx;
  piece.piece = {0, 0};
  work(piece, 0, ctx.first_piece);
  piece.piece = {1, ctx.first_piece};
  work(piece, ctx.first_piece, rows - ctx.first_piece);
  return true;
}

// Some of the rows of a normalised input.
struct NormedPiece {
  const RmsNorm& norm;
  at::Tensor x;
  at::Tensor residual;
  bool add;

  NormedInput input() const { return {norm, x, residual, add}; }
};
inline NormedPiece PieceOf(const NormedInput& in, int64_t first, int64_t rows) {
  return {in.norm, RowsOf(in.x, first, rows), RowsOf(in.residual, first, rows), in.add};
}

}  // namespace fastllm::runtime
