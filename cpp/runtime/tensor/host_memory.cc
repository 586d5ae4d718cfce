#include "runtime/tensor/host_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace fastllm::runtime {

Result<HostMemory> HostMemory::Map(size_t bytes, bool huge_pages) {
  HostMemory memory;
  if (bytes == 0) return memory;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    return Status::ResourceExhausted("cannot map " + std::to_string(bytes) +
                                     " bytes of memory: " + std::strerror(errno));
  }
  // Advice only: a kernel without huge pages still gives a working mapping.
  if (huge_pages) (void)madvise(p, bytes, MADV_HUGEPAGE);
  memory.data_ = p;
  memory.size_ = bytes;
  return memory;
}

HostMemory::~HostMemory() {
  if (data_ != nullptr) munmap(data_, size_);
}

HostMemory::HostMemory(HostMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace fastllm::runtime
