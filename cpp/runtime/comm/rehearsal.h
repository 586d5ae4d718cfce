// Rehearsal: a communicator that says nothing until it is told to.
#pragma once

#include <memory>
#include <utility>

#include "runtime/comm/communicator.h"

namespace fastllm::runtime {

// Before GoLive() calls return at once and leave their results as they are; afterwards `inner` makes them. For steps
// that only show what memory they need: while kernels of other devices wait for this one, the driver may wait for them
// when it is asked for memory, and all would wait forever. GoLive() on the rank's thread.
class Rehearsal : public Communicator {
 public:
  explicit Rehearsal(std::shared_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  void GoLive() { live_ = true; }

  int32_t rank() const override { return inner_->rank(); }
  int32_t size() const override { return inner_->size(); }
  Status AllReduceSum(const ops::OpContext& context, void* data, int64_t count, CommType type) override {
    return live_ ? inner_->AllReduceSum(context, data, count, type) : Status::Ok();
  }
  bool HasSumNorm(int64_t rows, int64_t hidden, CommType type) const override {
    return inner_->HasSumNorm(rows, hidden, type);
  }
  Status AllReduceNorm(const ops::OpContext& context, const ops::RmsNormParams& p, CommType type,
                       const ops::NextWeight& next) override {
    return live_ ? inner_->AllReduceNorm(context, p, type, next) : Status::Ok();
  }
  int64_t FirstPiece(int64_t rows, int64_t hidden, CommType type) const override {
    return inner_->FirstPiece(rows, hidden, type);
  }
  Status BeginSumNorm(const ops::OpContext& context, const SumPiece& piece, const void* x, int64_t rows, int64_t hidden,
                      CommType type) override {
    return live_ ? inner_->BeginSumNorm(context, piece, x, rows, hidden, type) : Status::Ok();
  }
  Status EndSumNorm(const ops::OpContext& context, const SumPiece& piece, const ops::RmsNormParams& p,
                    CommType type) override {
    return live_ ? inner_->EndSumNorm(context, piece, p, type) : Status::Ok();
  }
  bool HasArgmax(int64_t rows) const override { return inner_->HasArgmax(rows); }
  Status Argmax(const ops::OpContext& context, const ArgmaxCall& call) override {
    return live_ ? inner_->Argmax(context, call) : Status::Ok();
  }
  Status AllGather(const ops::OpContext& context, const void* in, void* out, int64_t count, CommType type) override {
    return live_ ? inner_->AllGather(context, in, out, count, type) : Status::Ok();
  }
  Status Broadcast(const ops::OpContext& context, void* data, int64_t count, CommType type, int32_t root) override {
    return live_ ? inner_->Broadcast(context, data, count, type, root) : Status::Ok();
  }
  Status Send(const ops::OpContext& context, const void* data, int64_t count, CommType type, int32_t to) override {
    return live_ ? inner_->Send(context, data, count, type, to) : Status::Ok();
  }
  Status Recv(const ops::OpContext& context, void* data, int64_t count, CommType type, int32_t from) override {
    return live_ ? inner_->Recv(context, data, count, type, from) : Status::Ok();
  }
  Status Barrier(const ops::OpContext& context) override { return live_ ? inner_->Barrier(context) : Status::Ok(); }
  void Abort(const Status& why) override { inner_->Abort(why); }
  Status broken() const override { return inner_->broken(); }

 private:
  const std::shared_ptr<Communicator> inner_;
  bool live_ = false;
};

}  // namespace fastllm::runtime
