// Communicator: what the ranks of one group say to each other. Backends: memory of one process (memory_hub.h), shared
// memory or process groups, NCCL.
#pragma once

#include <cstdint>
#include <string>

#include "fastllm/status.h"
#include "ops/contract/common.h"
#include "ops/contract/fused_linear.h"
#include "ops/contract/rms_norm.h"

namespace fastllm::runtime {

// Elements of a message; the first three are those of ops::DType.
enum class CommType : uint8_t { kF32 = 0, kF16 = 1, kBF16 = 2, kI32 = 3, kByte = 4 };

inline constexpr CommType CommTypeOf(ops::DType t) { return static_cast<CommType>(t); }
inline constexpr int64_t CommTypeSize(CommType t) {
  return t == CommType::kByte ? 1 : t == CommType::kF32 || t == CommType::kI32 ? 4 : 2;
}

// Which of the two pieces that the rows of a step are cut into (Communicator::FirstPiece()).
struct SumPiece {
  int32_t index = -1;     // 0 or 1; -1: all rows, uncut
  int64_t first_row = 0;  // among those of the step

  bool some() const { return index >= 0; }
};

// Every rank of the group makes the same calls in the same order, from one thread (its worker). Pointers are of the
// group's device. On a device the calls are put on context.stream and return at once, and can be captured in a graph;
// on the CPU they return when the result is there.
//
// An error is a Status that names the rank at fault as RankTopology::NameOf() does: kUnavailable for one that failed
// or was aborted, kDeadlineExceeded for one that did not come within the group's timeout, kInternal for a count or type
// that differs. After the first error the group is broken, and every call gives that error.
class Communicator {
 public:
  virtual ~Communicator() = default;

  // This rank's number in the group, and how many there are.
  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;

  // data[i] becomes the sum over the ranks. Floating types; in an order that does not depend on timing, so that the
  // result has the same bits on every rank and in every run. In memory: in order of the ranks, in float32, rounded
  // once.
  virtual Status AllReduceSum(const ops::OpContext& context, void* data, int64_t count, CommType type) = 0;

  // What follows a sum in a model, in one: p.residual += sum over the ranks of p.x; p.out = rms_norm(p.residual) by
  // p.weight (contract/rms_norm.h). Elements of all are of `type`. Only where HasSumNorm() says that this group does
  // that for rows of this size, which is the same on all ranks. `next` is a hint (contract/fused_linear.h).
  virtual bool HasSumNorm(int64_t /*rows*/, int64_t /*hidden*/, CommType /*type*/) const { return false; }
  virtual Status AllReduceNorm(const ops::OpContext& /*context*/, const ops::RmsNormParams& /*p*/, CommType /*type*/,
                               const ops::NextWeight& /*next*/) {
    return Status::Internal("this communicator has no sum with a norm");
  }

  // The same in two pieces of the rows, so that what ranks say of one is on its way while they compute the other.
  // FirstPiece(): how many rows the first piece of a step has; 0: such a step is not cut. The same on all ranks. Each
  // sum has both pieces, in this order: BeginSumNorm() when this rank's part of a piece is in x, EndSumNorm() before
  // the next sum of that piece begins. The rows of p are the piece's, p.x is the x of its begin, which stays as it is
  // until then; the result is that of AllReduceNorm(). Not captured in graphs.
  virtual int64_t FirstPiece(int64_t /*rows*/, int64_t /*hidden*/, CommType /*type*/) const { return 0; }
  virtual Status BeginSumNorm(const ops::OpContext& /*context*/, const SumPiece& /*piece*/, const void* /*x*/,
                              int64_t /*rows*/, int64_t /*hidden*/, CommType /*type*/) {
    return Status::Internal("this communicator has no sums in pieces");
  }
  virtual Status EndSumNorm(const ops::OpContext& /*context*/, const SumPiece& /*piece*/,
                            const ops::RmsNormParams& /*p*/, CommType /*type*/) {
    return Status::Internal("this communicator has no sums in pieces");
  }

  // The greedy tokens of rows of logits of which each rank has a part (contract/peer_argmax.h), where HasArgmax() says
  // that this group does that for so many rows.
  struct ArgmaxCall {
    const float* logits = nullptr;  // [rows, width], row stride `stride`
    int32_t* tokens = nullptr;      // [rows]
    int64_t stride = 0;
    int32_t rows = 0;
    int32_t width = 0;
    int32_t first_id = 0;  // of column 0
  };
  virtual bool HasArgmax(int64_t /*rows*/) const { return false; }
  virtual Status Argmax(const ops::OpContext& /*context*/, const ArgmaxCall& /*call*/) {
    return Status::Internal("this communicator picks no tokens");
  }

  // out[r * count, (r + 1) * count) becomes what rank r has in in[0, count). `in` may be this rank's part of `out`.
  virtual Status AllGather(const ops::OpContext& context, const void* in, void* out, int64_t count, CommType type) = 0;

  // data becomes what rank `root` has there.
  virtual Status Broadcast(const ops::OpContext& context, void* data, int64_t count, CommType type, int32_t root) = 0;

  // One message from this rank to `to`, which calls Recv() with as many elements. Messages between two ranks arrive in
  // order. Send() on the CPU copies and returns while there is room for the message, whether or not the other has
  // asked for it.
  virtual Status Send(const ops::OpContext& context, const void* data, int64_t count, CommType type, int32_t to) = 0;
  virtual Status Recv(const ops::OpContext& context, void* data, int64_t count, CommType type, int32_t from) = 0;

  // Returns when all have called it; on a device, what follows on the stream begins then.
  virtual Status Barrier(const ops::OpContext& context) = 0;

  // Breaks the group: all that wait in it, on any rank, and all later calls get `why`, unless it was broken before.
  // From any thread. `why` is an error that names the rank.
  virtual void Abort(const Status& why) = 0;

  // Why the group is broken, as far as it is known here without a call, or ok. From any thread.
  virtual Status broken() const { return Status::Ok(); }
};

}  // namespace fastllm::runtime
