// Descriptions of tensors for Hopper's copy engine.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace fastllm::cuda {

// Rows of 16-bit elements, contiguous, seen as [rows / 8][row_elements / atom][8][atom]; a box is box_rows (a multiple
// of 8) whole rows, which the copy lays down in that order with the bytes of each atom swizzled (64- or 128-byte rows).
struct RowBoxes {
  const void* data = nullptr;  // 16-byte aligned
  int64_t rows = 0;
  int32_t row_elements = 0;
  int32_t atom = 0;  // 32 or 64 elements
  int32_t box_rows = 0;
};

// Host only, no device call; the result is passed to a kernel by value. Throws InternalError, naming `op`, where the
// driver refuses it.
CUtensorMap MakeRowBoxes(const RowBoxes& b, const char* op);

// A row-major matrix of 16-bit elements, contiguous; a box is box_rows x 64 elements, its 128-byte rows swizzled. What
// a box has outside the matrix becomes zeros.
struct MatrixBoxes {
  const void* data = nullptr;  // 16-byte aligned
  int64_t rows = 0;
  int32_t columns = 0;   // a multiple of 8
  int32_t box_rows = 0;  // up to 256
};
CUtensorMap MakeMatrixBoxes(const MatrixBoxes& b, const char* op);

// A row-major weight of 16-bit elements, contiguous, seen as [groups][2][8][columns]: groups of 16 neighbouring rows
// or, with `gated`, of eight rows of its first half and the same eight of its second. A box is whole groups, 64 columns
// wide, its 128-byte rows swizzled; outside the weight there are zeros.
struct RowPairBoxes {
  const void* data = nullptr;  // 16-byte aligned
  int64_t rows = 0;            // a multiple of 16; with gated, of each half, a multiple of 8
  int32_t columns = 0;         // a multiple of 8
  bool gated = false;
  int32_t box_rows = 0;  // a multiple of 16
};
CUtensorMap MakeRowPairBoxes(const RowPairBoxes& b, const char* op);

}  // namespace fastllm::cuda
