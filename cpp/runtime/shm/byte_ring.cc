#include "runtime/shm/byte_ring.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace fastllm::runtime {

size_t ByteRing::Bytes(size_t num_readers, size_t capacity) {
  return sizeof(Head) + num_readers * sizeof(Reader) + (capacity + 63) / 64 * 64;
}

ByteRing::ByteRing(char* at, size_t capacity, ShmTeam* team, int32_t writer, std::vector<int32_t> readers)
    : head_(reinterpret_cast<Head*>(at)),
      readers_(reinterpret_cast<Reader*>(at + sizeof(Head))),
      bytes_(at + sizeof(Head) + readers.size() * sizeof(Reader)),
      capacity_(capacity),
      team_(team),
      writer_(writer),
      members_(std::move(readers)) {}

size_t ByteRing::Slowest() const {
  size_t slowest = 0;
  for (size_t i = 1; i < members_.size(); ++i) {
    if (readers_[i].read.load(std::memory_order_acquire) < readers_[slowest].read.load(std::memory_order_acquire)) {
      slowest = i;
    }
  }
  return slowest;
}

size_t ByteRing::Room() const {
  const uint64_t written = head_->written.load(std::memory_order_relaxed);
  return capacity_ - static_cast<size_t>(written - readers_[Slowest()].read.load(std::memory_order_acquire));
}

ByteRing::Reader& ByteRing::own() const {
  return readers_[std::ranges::find(members_, team_->self()) - members_.begin()];
}

Status ByteRing::Put(const char* data, size_t bytes, ShmDeadline deadline) {
  while (bytes > 0) {
    if (Room() == 0) {
      FASTLLM_RETURN_IF_ERROR(team_->Await([this] { return Room() > 0; }, members_[Slowest()], deadline));
    }
    const uint64_t written = head_->written.load(std::memory_order_relaxed);
    const size_t at = static_cast<size_t>(written % capacity_);
    const size_t part = std::min({bytes, Room(), capacity_ - at});
    std::memcpy(bytes_ + at, data, part);
    head_->written.store(written + part, std::memory_order_release);
    for (const int32_t reader : members_) team_->Ring(reader);
    data += part;
    bytes -= part;
  }
  return Status::Ok();
}

Status ByteRing::Get(char* data, size_t bytes, ShmDeadline deadline) {
  Reader& reader = own();
  const auto there = [&] {
    return static_cast<size_t>(head_->written.load(std::memory_order_acquire) -
                               reader.read.load(std::memory_order_relaxed));
  };
  while (bytes > 0) {
    if (there() == 0) FASTLLM_RETURN_IF_ERROR(team_->Await([&] { return there() > 0; }, writer_, deadline));
    const uint64_t read = reader.read.load(std::memory_order_relaxed);
    const size_t at = static_cast<size_t>(read % capacity_);
    const size_t part = std::min({bytes, there(), capacity_ - at});
    if (data != nullptr) {
      std::memcpy(data, bytes_ + at, part);
      data += part;
    }
    reader.read.store(read + part, std::memory_order_release);
    team_->Ring(writer_);
    bytes -= part;
  }
  return Status::Ok();
}

Status ByteRing::Write(std::span<const std::string_view> parts, ShmDeadline deadline) {
  uint64_t size = 0;
  for (const std::string_view part : parts) size += part.size();
  char head[sizeof(size)];
  std::memcpy(head, &size, sizeof(size));
  FASTLLM_RETURN_IF_ERROR(Put(head, sizeof(head), deadline));
  for (const std::string_view part : parts) FASTLLM_RETURN_IF_ERROR(Put(part.data(), part.size(), deadline));
  return Status::Ok();
}

Status ByteRing::Read(std::string* message, ShmDeadline deadline) {
  uint64_t size = 0;
  FASTLLM_RETURN_IF_ERROR(Get(reinterpret_cast<char*>(&size), sizeof(size), deadline));
  message->resize(static_cast<size_t>(size));
  return Get(message->data(), message->size(), deadline);
}

Result<size_t> ByteRing::ReadInto(void* data, size_t bytes, ShmDeadline deadline) {
  uint64_t size = 0;
  FASTLLM_RETURN_IF_ERROR(Get(reinterpret_cast<char*>(&size), sizeof(size), deadline));
  char* to = size == bytes ? static_cast<char*>(data) : nullptr;
  FASTLLM_RETURN_IF_ERROR(Get(to, static_cast<size_t>(size), deadline));
  return static_cast<size_t>(size);
}

bool ByteRing::HasMessage() const {
  return head_->written.load(std::memory_order_acquire) != own().read.load(std::memory_order_relaxed);
}

}  // namespace fastllm::runtime
