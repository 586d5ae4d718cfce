// ByteRing: messages of any size from one process to one or several others, each of which gets all of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fastllm/status.h"
#include "runtime/shm/shm_team.h"

namespace fastllm::runtime {

// A ring of bytes in shared memory. A message that is longer than the ring goes through it in pieces, while its readers
// take them. One thread of the writer at a time, and one of each reader.
class ByteRing {
 public:
  // Of shared memory, for `capacity` bytes on their way.
  static size_t Bytes(size_t num_readers, size_t capacity);

  // `at` is aligned to 64 bytes and holds zeros before the first use. writer, readers: members of the team, which
  // outlives this. All processes say the same.
  ByteRing(char* at, size_t capacity, ShmTeam* team, int32_t writer, std::vector<int32_t> readers);

  // Writes one message, whose parts follow each other; waits while there is no room. Errors as ShmTeam::Await().
  Status Write(std::span<const std::string_view> parts, ShmDeadline deadline);

  // Reads the next message for this member, whole.
  Status Read(std::string* message, ShmDeadline deadline);
  // The same into `data`; gives the size of the message, which is dropped when that is not `bytes`.
  Result<size_t> ReadInto(void* data, size_t bytes, ShmDeadline deadline);
  // Whether a message has begun to arrive.
  bool HasMessage() const;

 private:
  struct alignas(64) Head {
    std::atomic<uint64_t> written{0};  // bytes, ever
  };
  struct alignas(64) Reader {
    std::atomic<uint64_t> read{0};
  };

  Status Put(const char* data, size_t bytes, ShmDeadline deadline);
  Status Get(char* data, size_t bytes, ShmDeadline deadline);  // null: drops them
  size_t Room() const;
  size_t Slowest() const;  // index of the reader who is furthest behind
  Reader& own() const;

  Head* head_;
  Reader* readers_;
  char* bytes_;
  size_t capacity_;
  ShmTeam* team_;
  int32_t writer_;
  std::vector<int32_t> members_;  // who reads
};

}  // namespace fastllm::runtime
