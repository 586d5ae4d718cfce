// TensorSource: named tensors of a checkpoint, mapped from files, whatever the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fastllm/status.h"

namespace fastllm::runtime {

// Storage types. The quantised ones are GGUF block formats.
enum class WeightType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,  // of safetensors: 8-bit floats (e4m3), whose scales are tensors of their own
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K
};
const char* WeightTypeName(WeightType type);
// Elements in one block (1 for the float types), and its bytes.
int64_t WeightBlockElements(WeightType type);
int64_t WeightBlockBytes(WeightType type);

// One tensor of a mapped file. shape is row-major, outermost first (GGUF's order reversed); data stays valid as
// long as the source, and may be at any byte address (safetensors has no alignment rule). The reader has checked
// that data[0, nbytes) lies in the file and that nbytes fits the shape.
struct TensorInfo {
  std::string name;
  std::vector<int64_t> shape;
  WeightType type = WeightType::kF32;
  const uint8_t* data = nullptr;
  size_t nbytes = 0;

  int64_t numel() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
};

// Thread-safe after opening.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // nullptr when there is no such tensor.
  virtual const TensorInfo* Find(std::string_view name) const = 0;
  virtual const std::vector<TensorInfo>& tensors() const = 0;
  // Find for a tensor that the caller cannot do without. Errors: kNotFound names the tensor; kUnimplemented names a
  // tensor that is in the file but stored in a type without a reader (an integer buffer of a safetensors file).
  virtual Result<const TensorInfo*> Get(std::string_view name) const;
  // Rows [row_begin, row_end) of a tensor of this source were read and will hardly be again: a source that maps files
  // gives the memory of their pages back. Any thread.
  virtual void Release(const TensorInfo& /*tensor*/, int64_t /*row_begin*/, int64_t /*row_end*/) const {}
};

// Writes tensor rows [row_begin, row_end) of the outermost dimension as float32 to out, (row_end - row_begin) *
// numel / shape[0] values; a tensor without dimensions is one row. Rows must be whole blocks (the readers refuse
// tensors where they are not). Rows outside the tensor break an invariant (InternalError). Any thread; callers run
// ranges of rows side by side. The result is exact: every product of a block format fits float32's 24 bits, so a
// value is rounded once at most, and has the same bits with and without fused multiply-add.
void DequantizeRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, float* out);

}  // namespace fastllm::runtime
