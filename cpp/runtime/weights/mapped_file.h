// MappedFile: a whole file mapped read-only, unmapped by the destructor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "fastllm/status.h"

namespace fastllm::runtime {

// Move-only. data() stays at the same address when the object moves. The size is the file's at opening; a file that
// another process shortens while it is mapped is outside what this class can guard (the kernel raises SIGBUS).
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  // Errors: kNotFound (no such file), kInvalidArgument (not a regular file, or no permission), kDataLoss (the size
  // changed while it was opened), kInternal (the kernel refused the mapping). An empty file maps to size() == 0.
  static Result<MappedFile> Open(const std::string& path);

  // Gives back the memory of the pages that lie wholly in [begin, begin + bytes), which is part of a mapped file; they
  // are read from the file again when they are touched. Any thread.
  static void Release(const uint8_t* begin, size_t bytes);

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fastllm::runtime
