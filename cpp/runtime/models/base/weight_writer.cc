#include "runtime/models/base/weight_writer.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>

#include "core/base/check.h"

namespace fastllm::runtime {
namespace {

constexpr int64_t kPieceBytes = 4 << 20;  // of a page-locked buffer

bool StoredAs(WeightType type, ops::DType dtype) {
  return (type == WeightType::kF32 && dtype == ops::DType::kF32) ||
         (type == WeightType::kF16 && dtype == ops::DType::kF16) ||
         (type == WeightType::kBF16 && dtype == ops::DType::kBF16);
}

void Decode(const TensorInfo& tensor, int64_t begin, int64_t end, const Slice& cols, float* to) {
  if (cols.whole()) {
    DequantizeRows(tensor, begin, end, to);
  } else {
    DequantizeColumns(tensor, begin, end, cols.begin, cols.begin + cols.size, to);
  }
}

template <typename T>
void ConvertTo(const float* from, int64_t n, void* to) {
  T* out = static_cast<T*>(to);
  for (int64_t i = 0; i < n; ++i) out[i] = T(from[i]);
}

}  // namespace

WeightWriter::WeightWriter(const Placement& placement, void* stream)
    : placement_(placement), device_(ops::FindDevice(placement.device)), stream_(stream) {
  FASTLLM_CHECK(device_ != nullptr, "weights for a device that is not there");
  const auto quantize =
      ops::BuiltinOps().Resolve<ops::QuantizeFp8Fn>({ops::OpId::kQuantizeFp8, ops::Device::kCpu, ops::DType::kF32});
  FASTLLM_CHECK(quantize.ok(), quantize.status().ToString());
  quantize_ = *quantize;
  if (placement.device == ops::Device::kCpu) return;
  for (Buffer& b : buffers_) {
    b.data = device_->AllocatePinned(kPieceBytes);
    b.copied = device_->CreateEvent();
  }
}

WeightWriter::~WeightWriter() {
  for (Buffer& b : buffers_) {
    if (b.copied != nullptr) device_->DestroyEvent(b.copied);
    if (b.data != nullptr) device_->FreePinned(b.data);
  }
}

void WeightWriter::Convert(const TensorInfo& tensor, int64_t begin, int64_t end, const Slice& cols, int64_t elements,
                           void* to) {
  if (StoredAs(tensor.type, placement_.dtype)) {
    const int64_t element = ops::DTypeSize(placement_.dtype);
    const int64_t row_bytes = elements / (end - begin) * element;
    const int64_t stride = cols.whole() ? row_bytes : cols.full * element;
    const uint8_t* from = tensor.data + begin * stride + cols.begin * element;
    const int64_t at_once = cols.whole() ? end - begin : 1;
    for (int64_t r = begin; r < end; r += at_once, from += stride) {
      std::memcpy(static_cast<char*>(to) + (r - begin) * row_bytes, from, static_cast<size_t>(at_once * row_bytes));
    }
    return;
  }
  floats_.resize(static_cast<size_t>(elements));
  Decode(tensor, begin, end, cols, floats_.data());
  switch (placement_.dtype) {
    case ops::DType::kF32: std::memcpy(to, floats_.data(), floats_.size() * sizeof(float)); break;
    case ops::DType::kF16: ConvertTo<c10::Half>(floats_.data(), elements, to); break;
    case ops::DType::kBF16: ConvertTo<c10::BFloat16>(floats_.data(), elements, to); break;
    case ops::DType::kF8E4M3:
    case ops::DType::kI8: FASTLLM_CHECK(false, "no model is in 8 bits as a whole");
  }
}

void WeightWriter::Write(const TensorInfo& tensor, int64_t begin, int64_t end, const Slice& cols, void* to) {
  if (placement_.device == ops::Device::kCpu) return Decode(tensor, begin, end, cols, static_cast<float*>(to));
  const int64_t row = cols.size == 0 ? 1 : cols.size;
  const int64_t row_bytes = row * ops::DTypeSize(placement_.dtype);
  FASTLLM_CHECK(row_bytes <= kPieceBytes, "a row of tensor " + tensor.name + " takes " + std::to_string(row_bytes) +
                                              " bytes; the limit is " + std::to_string(kPieceBytes));
  const int64_t step = std::max<int64_t>(1, kPieceBytes / row_bytes);
  for (int64_t r = begin; r < end; r += step) {
    const int64_t last = std::min(end, r + step);
    Buffer& b = NextBuffer();
    Convert(tensor, r, last, cols, (last - r) * row, b.data);
    device_->Copy(static_cast<char*>(to) + (r - begin) * row_bytes, b.data, static_cast<size_t>((last - r) * row_bytes),
                  stream_);
    device_->RecordEvent(b.copied, stream_);
  }
}

WeightWriter::Buffer& WeightWriter::NextBuffer() {
  Buffer& b = buffers_[turn_];
  turn_ = 1 - turn_;
  device_->WaitEvent(b.copied);  // of two turns ago; an event that was never recorded is done
  return b;
}

void WeightWriter::ConvertFp8(const TensorInfo& tensor, const TensorInfo* scales, int64_t begin, int64_t end,
                              const Slice& cols, uint8_t* q, float* scale) {
  const int64_t rows = end - begin, k = cols.size;
  if (tensor.type == WeightType::kF8E4M3) {
    const uint8_t* from = tensor.data + begin * cols.full + cols.begin;
    const int64_t at_once = cols.whole() ? rows : 1;
    for (int64_t r = 0; r < rows; r += at_once)
      std::memcpy(q + r * k, from + r * cols.full, static_cast<size_t>(at_once * k));
    if (scales->numel() == 1) {
      DequantizeRows(*scales, 0, 1, scale);
      std::fill(scale + 1, scale + rows, scale[0]);
    } else {
      DequantizeRows(*scales, begin, end, scale);
    }
    return;
  }
  floats_.resize(static_cast<size_t>(rows * k));
  Decode(tensor, begin, end, cols, floats_.data());
  quantize_({{q, scale}, floats_.data(), static_cast<int32_t>(rows), static_cast<int32_t>(k)}, {});
}

void WeightWriter::WriteFp8(const TensorInfo& tensor, const TensorInfo* scales, int64_t begin, int64_t end,
                            const Slice& cols, uint8_t* q, float* scale) {
  if (placement_.device == ops::Device::kCpu) return ConvertFp8(tensor, scales, begin, end, cols, q, scale);
  const int64_t row_bytes = cols.size + static_cast<int64_t>(sizeof(float));
  const int64_t step = (kPieceBytes - 64) / row_bytes;
  FASTLLM_CHECK(step > 0, "a row of tensor " + tensor.name + " takes " + std::to_string(row_bytes) +
                              " bytes; the limit is " + std::to_string(kPieceBytes - 64));
  for (int64_t r = begin; r < end; r += step) {
    const int64_t last = std::min(end, r + step), bytes = (last - r) * cols.size;
    Buffer& b = NextBuffer();
    auto* const codes = static_cast<uint8_t*>(b.data);
    auto* const floats = reinterpret_cast<float*>(codes + (bytes + 15) / 16 * 16);
    ConvertFp8(tensor, scales, r, last, cols, codes, floats);
    device_->Copy(q + (r - begin) * cols.size, codes, static_cast<size_t>(bytes), stream_);
    device_->Copy(scale + (r - begin), floats, static_cast<size_t>(last - r) * sizeof(float), stream_);
    device_->RecordEvent(b.copied, stream_);
  }
}

void WeightWriter::Finish() { device_->Synchronize(stream_); }

}  // namespace fastllm::runtime
