// peer_rows_norm on threads in place of devices: rows and their flags as cuda/comm/peer_rows.cuh has them.
#pragma once

#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "cuda/comm/peer_steps.h"
#include "ops/contract/peer_rows.h"

namespace fastllm::ops::peer_threads {

// Whether all came.
template <typename T>
bool RowsNorm(const PeerRowsNormParams& p) {
  const PeerRowsBoxes& b = p.peers;
  const int32_t hidden = p.norm.hidden;
  const auto row_bytes = static_cast<size_t>(b.row_bytes);
  for (int32_t row = 0; row < p.norm.num_tokens; ++row) {
    const uint32_t epoch = cuda::NextEpoch(b.epochs[row]);
    const T* const x = static_cast<const T*>(p.norm.x) + int64_t{row} * hidden;
    T* const residual = static_cast<T*>(p.norm.residual) + int64_t{row} * hidden;
    T* const out = static_cast<T*>(p.norm.out) + int64_t{row} * hidden;
    const auto flag = [&](int32_t box, int32_t from) {
      return std::atomic_ref<uint32_t>(*PeerRowFlag(b, box, from, row, epoch));
    };
    for (int32_t r = 0; r < b.size; ++r) {
      if (r == b.rank) continue;
      std::memcpy(PeerRowAt(b, r, b.rank, row, epoch), x, row_bytes);
      flag(r, b.rank).store(epoch, std::memory_order_release);
    }
    std::vector<float> sum(static_cast<size_t>(hidden));
    for (int32_t r = 0; r < b.size; ++r) {
      const T* part = x;
      if (r != b.rank) {
        while (flag(b.rank, r).load(std::memory_order_acquire) != epoch) {
          if (std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(b.stop)).load() != 0) return false;
          std::this_thread::yield();
        }
        part = static_cast<const T*>(PeerRowAt(b, b.rank, r, row, epoch));
      }
      for (int32_t i = 0; i < hidden; ++i) {
        sum[i] = r == 0 ? static_cast<float>(part[i]) : sum[i] + static_cast<float>(part[i]);
      }
    }
    float squares = 0.0f;
    for (int32_t i = 0; i < hidden; ++i) {
      residual[i] = T(static_cast<float>(T(sum[i])) + static_cast<float>(residual[i]));
      squares += static_cast<float>(residual[i]) * static_cast<float>(residual[i]);
    }
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(hidden) + p.norm.eps);
    for (int32_t i = 0; i < hidden; ++i) {
      out[i] = T(static_cast<float>(residual[i]) * scale * static_cast<float>(static_cast<const T*>(p.norm.weight)[i]));
    }
    b.epochs[row] = epoch;
  }
  return true;
}

}  // namespace fastllm::ops::peer_threads
