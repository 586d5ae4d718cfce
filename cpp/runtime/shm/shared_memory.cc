#include "runtime/shm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace fastllm::runtime {
namespace {

Status Failed(const std::string& what) {
  return Status::ResourceExhausted("shared memory: " + what + ": " + std::strerror(errno));
}

}  // namespace

Result<SharedMemory> SharedMemory::Create(const char* name, size_t bytes) {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) return Failed("memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return Failed(std::to_string(bytes) + " bytes");
  // Memory that shrank would kill those who touch it.
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return Failed("sealing");
  return Map(std::move(fd));
}

Result<SharedMemory> SharedMemory::Map(UniqueFd fd) {
  SharedMemory memory(std::move(fd));
  struct stat facts {};
  if (fstat(memory.fd(), &facts) != 0) return Failed("fstat");
  memory.size_ = static_cast<size_t>(facts.st_size);
  void* at = mmap(nullptr, memory.size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory.fd(), 0);
  if (at == MAP_FAILED) return Failed("mapping " + std::to_string(memory.size_) + " bytes");
  memory.data_ = static_cast<char*>(at);
  return memory;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace fastllm::runtime
