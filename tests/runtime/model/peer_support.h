// Communicators over boxes with threads in place of devices.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "runtime/device/peer_communicator.h"
#include "tests/ops/peer_rows_threads.h"
#include "tests/ops/peer_threads.h"

namespace fastllm::runtime::testing {

using Ptr = std::shared_ptr<Communicator>;

// Counts what goes by; the group of threads below it does it.
class Counting : public Communicator {
 public:
  explicit Counting(Ptr inner) : inner_(std::move(inner)) {}
  int32_t rank() const override { return inner_->rank(); }
  int32_t size() const override { return inner_->size(); }
  Status AllReduceSum(const ops::OpContext& c, void* data, int64_t count, CommType type) override {
    ++sums;
    return inner_->AllReduceSum(c, data, count, type);
  }
  bool HasSumNorm(int64_t, int64_t, CommType) const override { return false; }
  Status AllGather(const ops::OpContext& c, const void* in, void* out, int64_t count, CommType type) override {
    return inner_->AllGather(c, in, out, count, type);
  }
  Status Broadcast(const ops::OpContext& c, void* data, int64_t count, CommType type, int32_t root) override {
    return inner_->Broadcast(c, data, count, type, root);
  }
  Status Send(const ops::OpContext& c, const void* data, int64_t count, CommType type, int32_t to) override {
    return inner_->Send(c, data, count, type, to);
  }
  Status Recv(const ops::OpContext& c, void* data, int64_t count, CommType type, int32_t from) override {
    return inner_->Recv(c, data, count, type, from);
  }
  Status Barrier(const ops::OpContext& c) override { return inner_->Barrier(c); }
  void Abort(const Status& why) override { inner_->Abort(why); }
  Status broken() const override { return inner_->broken(); }

  std::atomic<int> sums{0};

 private:
  Ptr inner_;
};

template <typename T>
inline void ReduceOnThreads(const ops::PeerReduceParams& p, const ops::OpContext&) {
  ops::peer_threads::Reduce<T>(p);
}

template <typename T>
inline void ReduceNormOnThreads(const ops::PeerReduceNormParams& p, const ops::OpContext&) {
  ops::peer_threads::ReduceNorm<T>(p);
}

template <typename T>
inline void RowsNormOnThreads(const ops::PeerRowsNormParams& p, const ops::OpContext&) {
  ops::peer_threads::RowsNorm<T>(p);
}

inline std::atomic<int> num_pieces{0};  // of sums, ended by all ranks

template <typename T>
inline void PieceNormOnThreads(const ops::PeerPieceNormParams& p, const ops::OpContext&) {
  ++num_pieces;
  ops::peer_threads::PieceNorm<T>(p);
}

inline std::atomic<int> num_picks{0};  // calls of all ranks

inline void ArgmaxOnThreads(const ops::PeerArgmaxParams& p, const ops::OpContext&) {
  ++num_picks;
  ops::peer_threads::Argmax(p);
}

inline PeerOptions PeersOnThreads(int32_t rank) {
  PeerOptions o;
  o.name = "rank " + std::to_string(rank);
  o.most_bytes = 4096;
  o.reduce_of = [](ops::DType t) -> ops::PeerReduceFn {
    return t == ops::DType::kF32 ? &ReduceOnThreads<float> : &ReduceOnThreads<ops::peer_threads::Bf16>;
  };
  o.reduce_norm_of = [](ops::DType t) -> ops::PeerReduceNormFn {
    return t == ops::DType::kF32 ? &ReduceNormOnThreads<float> : &ReduceNormOnThreads<ops::peer_threads::Bf16>;
  };
  o.rows_norm_of = [](ops::DType t) -> ops::PeerRowsNormFn {
    return t == ops::DType::kF32 ? &RowsNormOnThreads<float> : &RowsNormOnThreads<ops::peer_threads::Bf16>;
  };
  o.piece_norm_of = [](ops::DType t) -> ops::PeerPieceNormFn {
    return t == ops::DType::kF32 ? &PieceNormOnThreads<float> : &PieceNormOnThreads<ops::peer_threads::Bf16>;
  };
  o.argmax = ArgmaxOnThreads;
  o.reach = [](int32_t device) { return device == 0; };
  return o;
}

}  // namespace fastllm::runtime::testing
