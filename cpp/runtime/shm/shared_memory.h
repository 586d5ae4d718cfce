// SharedMemory: memory of several processes that has no name.
#pragma once

#include <cstddef>

#include "core/base/unique_fd.h"
#include "fastllm/status.h"

namespace fastllm::runtime {

// It is there as long as a process maps it or holds its descriptor, however they end: nothing stays in /dev/shm, whose
// size does not limit it either. Pages are made when they are first touched, with zeros. Nobody can change the size.
class SharedMemory {
 public:
  // `name` is seen in /proc/<pid>/maps alone. kResourceExhausted with the size when there is no room.
  static Result<SharedMemory> Create(const char* name, size_t bytes);
  // What another process made and passed on; the descriptor is closed with this.
  static Result<SharedMemory> Map(UniqueFd fd);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  char* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_.get(); }

 private:
  explicit SharedMemory(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
  char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fastllm::runtime
