#include "runtime/device/nccl_communicator.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <dlfcn.h>

#include <algorithm>
#include <utility>

#include "runtime/comm/call_gate.h"

namespace fastllm::runtime {
namespace {

// The part of NCCL's C interface that is used here, by its numbers, which are the same in all versions 2.x. Found when
// it is first needed instead of linked: the library that a CUDA torch has loaded is the one to use, its headers come
// with another package than torch's, and a wheel must also load where there is neither.
using NcclComm = void*;
using NcclResult = int;
constexpr NcclResult kSuccess = 0;
constexpr NcclResult kInProgress = 7;
constexpr int kSum = 0;
constexpr int kOldestVersion = 21400;  // 2.14: errors can be asked for while a call is under way

struct UniqueId {
  char bytes[128];
};

struct Nccl {
  NcclResult (*get_version)(int*);
  NcclResult (*get_unique_id)(UniqueId*);
  NcclResult (*comm_init_rank)(NcclComm*, int, UniqueId, int);
  NcclResult (*comm_abort)(NcclComm);
  NcclResult (*comm_get_async_error)(NcclComm, NcclResult*);
  const char* (*get_error_string)(NcclResult);
  NcclResult (*all_reduce)(const void*, void*, size_t, int, int, NcclComm, void*);
  NcclResult (*all_gather)(const void*, void*, size_t, int, NcclComm, void*);
  NcclResult (*broadcast)(const void*, void*, size_t, int, int, NcclComm, void*);
  NcclResult (*send)(const void*, size_t, int, int, NcclComm, void*);
  NcclResult (*recv)(void*, size_t, int, int, NcclComm, void*);
};

template <typename Fn>
bool Find(void* library, const char* name, Fn* fn) {
  *fn = reinterpret_cast<Fn>(dlsym(library, name));
  return *fn != nullptr;
}

Result<Nccl> Load() {
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Status::Unimplemented(std::string("NCCL is not there: ") + dlerror());
  Nccl n{};
  const bool found =
      Find(library, "ncclGetVersion", &n.get_version) && Find(library, "ncclGetUniqueId", &n.get_unique_id) &&
      Find(library, "ncclCommInitRank", &n.comm_init_rank) && Find(library, "ncclCommAbort", &n.comm_abort) &&
      Find(library, "ncclCommGetAsyncError", &n.comm_get_async_error) &&
      Find(library, "ncclGetErrorString", &n.get_error_string) && Find(library, "ncclAllReduce", &n.all_reduce) &&
      Find(library, "ncclAllGather", &n.all_gather) && Find(library, "ncclBroadcast", &n.broadcast) &&
      Find(library, "ncclSend", &n.send) && Find(library, "ncclRecv", &n.recv);
  int version = 0;
  if (!found || n.get_version(&version) != kSuccess || version < kOldestVersion) {
    return Status::Unimplemented("NCCL is of version " + std::to_string(version) + "; must be at least " +
                                 std::to_string(kOldestVersion) + " (2.14)");
  }
  return n;
}

const Result<Nccl>& Library() {
  static const Result<Nccl> nccl = Load();
  return nccl;
}

int TypeOf(CommType type) {
  switch (type) {
    case CommType::kF32: return 7;
    case CommType::kF16: return 6;
    case CommType::kBF16: return 9;
    case CommType::kI32: return 2;
    case CommType::kByte: return 1;
  }
  return 1;
}

class NcclCommunicator : public Communicator {
 public:
  // word: one float on the device.
  NcclCommunicator(const Nccl& nccl, NcclComm comm, int32_t rank, std::vector<std::string> names, at::Tensor word)
      : nccl_(nccl), comm_(comm), rank_(rank), names_(std::move(names)), word_(std::move(word)) {}

  // Not ncclCommDestroy(): that waits for ranks that may be gone.
  ~NcclCommunicator() override { Abort(Status::Unavailable(names_[rank_] + " has ended")); }

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return static_cast<int32_t>(names_.size()); }

  Status AllReduceSum(const ops::OpContext& context, void* data, int64_t count, CommType type) override {
    return Call("all-reduce", [&](NcclComm comm) {
      return nccl_.all_reduce(data, data, static_cast<size_t>(count), TypeOf(type), kSum, comm, context.stream);
    });
  }
  Status AllGather(const ops::OpContext& context, const void* in, void* out, int64_t count, CommType type) override {
    return Call("all-gather", [&](NcclComm comm) {
      return nccl_.all_gather(in, out, static_cast<size_t>(count), TypeOf(type), comm, context.stream);
    });
  }
  Status Broadcast(const ops::OpContext& context, void* data, int64_t count, CommType type, int32_t root) override {
    return Call("broadcast", [&](NcclComm comm) {
      return nccl_.broadcast(data, data, static_cast<size_t>(count), TypeOf(type), root, comm, context.stream);
    });
  }
  Status Send(const ops::OpContext& context, const void* data, int64_t count, CommType type, int32_t to) override {
    return Call("send", [&](NcclComm comm) {
      return nccl_.send(data, static_cast<size_t>(count), TypeOf(type), to, comm, context.stream);
    });
  }
  Status Recv(const ops::OpContext& context, void* data, int64_t count, CommType type, int32_t from) override {
    return Call("receive", [&](NcclComm comm) {
      return nccl_.recv(data, static_cast<size_t>(count), TypeOf(type), from, comm, context.stream);
    });
  }
  Status Barrier(const ops::OpContext& context) override {
    return AllReduceSum(context, word_.data_ptr(), 1, CommType::kF32);
  }

  // Ends the kernels that wait for other ranks, and calls that do; then waits for graphs that hold such kernels to be
  // destroyed: by the aborting thread, perhaps, so not on that.
  void Abort(const Status& why) override {
    gate_.Close(why, [abort = nccl_.comm_abort, comm = comm_] { abort(comm); });
  }
  Status broken() const override { return gate_.closed(); }

 private:
  template <typename Work>
  Status Call(const char* what, const Work& work) {
    FASTLLM_RETURN_IF_ERROR(gate_.Enter());
    NcclResult earlier = kSuccess;
    NcclResult result = nccl_.comm_get_async_error(comm_, &earlier);
    if (result == kSuccess && earlier != kInProgress) result = earlier;
    if (result == kSuccess) result = work(comm_);
    gate_.Leave();
    if (result == kSuccess) return Status::Ok();
    Abort(Status::Unavailable(names_[rank_] + ": " + what + " among " + std::to_string(size()) +
                              " ranks failed: " + nccl_.get_error_string(result)));
    return gate_.closed();
  }

  const Nccl& nccl_;
  const NcclComm comm_;
  int32_t rank_;
  std::vector<std::string> names_;
  at::Tensor word_;
  CallGate gate_;  // goes first: the end of the others waits for that of the communicator
};

}  // namespace

Result<NcclId> MakeNcclId() {
  if (!Library().ok()) return Library().status();
  UniqueId id;
  const NcclResult result = Library()->get_unique_id(&id);
  if (result != kSuccess) {
    return Status::Unavailable(std::string("ncclGetUniqueId failed: ") + Library()->get_error_string(result));
  }
  return std::to_array(id.bytes);
}

Result<std::unique_ptr<Communicator>> MakeNcclCommunicator(const NcclId& id, int32_t rank,
                                                           std::vector<std::string> names) {
  if (!Library().ok()) return Library().status();
  UniqueId own;
  std::copy(id.begin(), id.end(), own.bytes);
  // Now: once there is a group, others may wait on their devices while this one is asked for memory.
  at::Tensor word = at::zeros({1}, at::kCUDA);
  NcclComm comm = nullptr;
  const NcclResult result = Library()->comm_init_rank(&comm, static_cast<int>(names.size()), own, rank);
  if (result != kSuccess) {
    return Status::Unavailable(names[rank] + " cannot join its group: " + Library()->get_error_string(result));
  }
  return std::unique_ptr<Communicator>(
      std::make_unique<NcclCommunicator>(*Library(), comm, rank, std::move(names), std::move(word)));
}

}  // namespace fastllm::runtime
