// WeightWriter: rows of a checkpoint tensor into a parameter, wherever it lies and whatever its type.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/contract/fp8.h"
#include "ops/table/device.h"
#include "runtime/nn/param.h"
#include "runtime/tensor/placement.h"
#include "runtime/weights/tensor_source.h"

namespace fastllm::runtime {

// One per loading thread. On the CPU rows are dequantised in place. For a device they go through two page-locked
// buffers by turns, so that reading a file and copying overlap; rows that are stored in the parameter's type are
// copied as they are.
class WeightWriter {
 public:
  WeightWriter(const Placement& placement, void* stream);
  ~WeightWriter();
  WeightWriter(const WeightWriter&) = delete;
  WeightWriter& operator=(const WeightWriter&) = delete;

  // The columns of rows [begin, end) of the tensor to `to`, row by row; of a vector, whose `cols` are 0, the elements
  // [begin, end). Throws InternalError when a copy is refused.
  void Write(const TensorInfo& tensor, int64_t begin, int64_t end, const Slice& cols, void* to);

  // The columns of rows [begin, end) of a matrix in 8-bit floats (ops/contract/fp8.h) to q and scale, which are those
  // of row `begin`: as they are stored, with the scales of `scales` (one for each row of the tensor, or one for all),
  // or else made from what the tensor holds there: of a rank's columns a row has a scale of its own.
  void WriteFp8(const TensorInfo& tensor, const TensorInfo* scales, int64_t begin, int64_t end, const Slice& cols,
                uint8_t* q, float* scale);

  // Returns when everything has arrived.
  void Finish();

 private:
  struct Buffer {
    void* data = nullptr;
    void* copied = nullptr;  // event
  };
  // One piece; q and scale in host memory.
  void ConvertFp8(const TensorInfo& tensor, const TensorInfo* scales, int64_t begin, int64_t end, const Slice& cols,
                  uint8_t* q, float* scale);
  // The buffer whose turn it is, free to be written.
  Buffer& NextBuffer();
  // Converts a piece of at most kPiece elements into the buffer.
  void Convert(const TensorInfo& tensor, int64_t begin, int64_t end, const Slice& cols, int64_t elements, void* to);

  Placement placement_;
  const ops::DeviceApi* device_;
  void* stream_;
  Buffer buffers_[2];
  int turn_ = 0;
  std::vector<float> floats_;
  ops::QuantizeFp8Fn quantize_;
};

}  // namespace fastllm::runtime
