// HostMemory: one anonymous mapping of zero pages. A page costs memory only once it has been written.
#pragma once

#include <cstddef>

#include "fastllm/status.h"

namespace fastllm::runtime {

class HostMemory {
 public:
  // huge_pages asks the kernel for 2 MiB pages: right for memory that will be written whole (weights), wrong for
  // memory of which parts may stay untouched (the KV cache). kResourceExhausted when the address space is refused.
  static Result<HostMemory> Map(size_t bytes, bool huge_pages);

  HostMemory() = default;
  ~HostMemory();
  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&& other) noexcept;

  void* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fastllm::runtime
