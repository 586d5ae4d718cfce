// peer_rows_norm and peer_piece_norm on threads in place of devices: as cuda/comm/peer_rows.cuh has them.
#pragma once

#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "cuda/comm/peer_steps.h"
#include "cuda/comm/peer_words.h"
#include "ops/contract/peer_piece.h"
#include "ops/contract/peer_rows.h"

namespace fastllm::ops::peer_threads {

// What follows when the parts of a row are there, by rank.
template <typename T>
void AddRow(const RmsNormParams& norm, int32_t row, const std::vector<const T*>& parts) {
  const auto hidden = static_cast<int32_t>(norm.hidden);
  T* const residual = static_cast<T*>(norm.residual) + int64_t{row} * hidden;
  T* const out = static_cast<T*>(norm.out) + int64_t{row} * hidden;
  float squares = 0.0f;
  for (int32_t i = 0; i < hidden; ++i) {
    float sum = static_cast<float>(parts[0][i]);
    for (size_t r = 1; r < parts.size(); ++r) sum += static_cast<float>(parts[r][i]);
    residual[i] = T(static_cast<float>(T(sum)) + static_cast<float>(residual[i]));
    squares += static_cast<float>(residual[i]) * static_cast<float>(residual[i]);
  }
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(hidden) + norm.eps);
  for (int32_t i = 0; i < hidden; ++i) {
    out[i] = T(static_cast<float>(residual[i]) * scale * static_cast<float>(static_cast<const T*>(norm.weight)[i]));
  }
}

// Whether the flag has come.
inline bool AwaitFlag(const uint32_t* flag, uint32_t epoch, const uint32_t* stop) {
  const auto read = [](const uint32_t* word) {
    return std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(word)).load(std::memory_order_acquire);
  };
  while (read(flag) != epoch) {
    if (read(stop) != 0) return false;
    std::this_thread::yield();
  }
  return true;
}

// Words of a box.
inline void PutWords(void* to, const void* from, size_t bytes) {
  for (size_t i = 0; i < bytes / 4; ++i) {
    uint32_t word;
    std::memcpy(&word, static_cast<const char*>(from) + 4 * i, 4);
    std::atomic_ref<uint32_t>(static_cast<uint32_t*>(to)[i]).store(cuda::ToBox(word), std::memory_order_relaxed);
  }
}
// Whether all came; zeros are put back.
inline bool TakeWords(void* to, void* from, size_t bytes, const uint32_t* stop) {
  for (size_t i = 0; i < bytes / 4; ++i) {
    const std::atomic_ref<uint32_t> word(static_cast<uint32_t*>(from)[i]);
    uint32_t seen;
    while ((seen = word.load(std::memory_order_relaxed)) == 0) {
      if (std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(stop)).load() != 0) return false;
      std::this_thread::yield();
    }
    word.store(0, std::memory_order_relaxed);
    seen = cuda::FromBox(seen);
    std::memcpy(static_cast<char*>(to) + 4 * i, &seen, 4);
  }
  return true;
}

// Whether all came.
template <typename T>
bool RowsNorm(const PeerRowsNormParams& p) {
  const PeerRowsBoxes& b = p.peers;
  const auto row_bytes = static_cast<size_t>(b.row_bytes);
  for (int32_t row = 0; row < p.norm.num_tokens; ++row) {
    const uint32_t epoch = cuda::NextEpoch(b.epochs[row]);
    const T* const x = static_cast<const T*>(p.norm.x) + int64_t{row} * p.norm.hidden;
    for (int32_t r = 0; r < b.size; ++r) {
      if (r != b.rank) PutWords(PeerRowAt(b, r, b.rank, row, epoch), x, row_bytes);
    }
    std::vector<std::vector<T>> taken(static_cast<size_t>(b.size), std::vector<T>(static_cast<size_t>(p.norm.hidden)));
    std::vector<const T*> parts(static_cast<size_t>(b.size), x);
    for (int32_t r = 0; r < b.size; ++r) {
      if (r == b.rank) continue;
      if (!TakeWords(taken[r].data(), PeerRowAt(b, b.rank, r, row, epoch), row_bytes, b.stop)) return false;
      parts[r] = taken[r].data();
    }
    AddRow(p.norm, row, parts);
    b.epochs[row] = epoch;
  }
  return true;
}

// peer_piece_norm; whether all came.
template <typename T>
bool PieceNorm(const PeerPieceNormParams& p) {
  for (int32_t r = 0; r < p.size; ++r) {
    if (r != p.rank && !AwaitFlag(p.flags[r], p.epoch, p.stop)) return false;
  }
  for (int32_t row = 0; row < p.norm.num_tokens; ++row) {
    std::vector<const T*> parts;
    for (int32_t r = 0; r < p.size; ++r) {
      const void* const first = r == p.rank ? p.norm.x : p.parts[r];
      parts.push_back(static_cast<const T*>(first) + int64_t{row} * p.norm.hidden);
    }
    AddRow(p.norm, row, parts);
  }
  return true;
}

}  // namespace fastllm::ops::peer_threads
