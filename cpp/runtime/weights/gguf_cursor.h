// GgufCursor: bounds-checked little-endian reads from the header of a mapped GGUF file.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "fastllm/status.h"
#include "runtime/weights/gguf.h"

namespace fastllm::runtime {

// GGUF stores numbers little-endian and so does every host this engine runs on.
static_assert(std::endian::native == std::endian::little);

// Reads move the position; one that would pass the end gives kDataLoss, which names what was read and the byte.
class GgufCursor {
 public:
  GgufCursor(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  size_t position() const { return position_; }
  size_t remaining() const { return size_ - position_; }

  template <typename T>
  Status Read(T* out, const char* what) {
    if (remaining() < sizeof(T)) return Truncated(what, sizeof(T));
    std::memcpy(out, data_ + position_, sizeof(T));
    position_ += sizeof(T);
    return Status::Ok();
  }

  // A uint64 length, then that many bytes.
  Status ReadString(std::string* out, const char* what);

  // One metadata value: its uint32 type, then the value. Nested arrays and uint64 past int64_t are refused.
  Status ReadValue(GgufValue* out);

 private:
  Status ReadScalar(uint32_t type, GgufValue* out);
  Status ReadArray(GgufValue* out);
  Status Truncated(const char* what, uint64_t need) const;

  const uint8_t* data_;
  size_t size_;
  size_t position_ = 0;
};

}  // namespace fastllm::runtime
