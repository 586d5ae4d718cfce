// libfastllm_c10d.so: communicators over torch's process groups. See runtime/comm/c10d_module.h.
#include "runtime/comm/c10d_module.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "fastllm/export.h"
#include "runtime/comm/comm_call.h"
#include "runtime/comm/sum_ranks.h"

namespace fastllm::runtime {
namespace {

// `own` of every rank, one behind another. Older torch knows it by another name, which newer torch warns of.
template <typename Group>
auto GatherFlat(Group& group, at::Tensor& all, at::Tensor& own) {
  if constexpr (requires { group.all_gather_single(all, own); }) {
    return group.all_gather_single(all, own);
  } else {
    return group._allgather_base(all, own);
  }
}

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr int64_t kPieceBytes = int64_t{4} << 20;  // of a sum, from each rank
constexpr size_t kMostMessages = 64;               // on their way to one rank

at::Tensor View(const void* data, int64_t bytes) {
  return at::from_blob(const_cast<void*>(data), {bytes}, at::TensorOptions().dtype(at::kByte));
}

class C10dCommunicator : public Communicator {
 public:
  C10dCommunicator(Group group, std::vector<std::string> names)
      : group_(std::move(group)), names_(std::move(names)), sent_(names_.size()) {}

  int32_t rank() const override { return group_->getRank(); }
  int32_t size() const override { return group_->getSize(); }

  Status AllReduceSum(const ops::OpContext& context, void* data, int64_t count, CommType type) override {
    FASTLLM_RETURN_IF_ERROR(CheckSum(type, names_[rank()]));
    const int64_t element = CommTypeSize(type);
    const int64_t most = kPieceBytes / element;
    for (int64_t done = 0; done < count; done += most) {
      const int64_t piece = std::min(most, count - done);
      char* at = static_cast<char*>(data) + done * element;
      values_.resize(static_cast<size_t>(piece * element * size()));
      FASTLLM_RETURN_IF_ERROR(AllGather(context, at, values_.data(), piece, type));
      std::vector<const void*> inputs;
      for (int32_t r = 0; r < size(); ++r) inputs.push_back(values_.data() + r * piece * element);
      void* out = at;
      SumRanks(inputs, {&out, 1}, 0, piece, type);
    }
    return Status::Ok();
  }

  Status AllGather(const ops::OpContext& /*context*/, const void* in, void* out, int64_t count,
                   CommType type) override {
    const int64_t bytes = count * CommTypeSize(type);
    return Guard("gathering", -1, [&] {
      at::Tensor all = View(out, bytes * size());
      at::Tensor own = View(in, bytes).clone();  // it may be a part of `out`
      GatherFlat(*group_, all, own)->wait();
    });
  }

  Status Broadcast(const ops::OpContext& /*context*/, void* data, int64_t count, CommType type, int32_t root) override {
    return Guard("broadcasting", root, [&] {
      std::vector<at::Tensor> tensors = {View(data, count * CommTypeSize(type))};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      group_->broadcast(tensors, options)->wait();
    });
  }

  // Gloo's sends end when the other side has asked for them, so a copy waits with each.
  Status Send(const ops::OpContext& /*context*/, const void* data, int64_t count, CommType type, int32_t to) override {
    return Guard("sending", to, [&] {
      std::deque<Message>& queue = sent_[static_cast<size_t>(to)];
      while (!queue.empty() && (queue.size() >= kMostMessages || queue.front().work->isCompleted())) {
        queue.front().work->wait();
        queue.pop_front();
      }
      Message message{{View(data, count * CommTypeSize(type)).clone()}, nullptr};
      message.work = group_->send(message.tensors, to, /*tag=*/0);
      queue.push_back(std::move(message));
    });
  }

  Status Recv(const ops::OpContext& /*context*/, void* data, int64_t count, CommType type, int32_t from) override {
    return Guard("receiving", from, [&] {
      std::vector<at::Tensor> tensors = {View(data, count * CommTypeSize(type))};
      group_->recv(tensors, from, /*tag=*/0)->wait();
    });
  }

  Status Barrier(const ops::OpContext& context) override {
    char own = 0;
    std::vector<char> all(static_cast<size_t>(size()));
    return AllGather(context, &own, all.data(), 1, CommType::kByte);
  }

  // Nothing wakes a wait in gloo but its own timeout or the end of a process, which is how such ranks are ended.
  void Abort(const Status& why) override { static_cast<void>(Break(why)); }

 private:
  struct Message {
    std::vector<at::Tensor> tensors;
    c10::intrusive_ptr<c10d::Work> work;
  };

  Status Break(const Status& why) {
    const std::lock_guard lock(mutex_);
    if (broken_.ok()) broken_ = why;
    return broken_;
  }

  template <typename Work>
  Status Guard(const char* what, int32_t other, const Work& work) {
    {
      const std::lock_guard lock(mutex_);
      FASTLLM_RETURN_IF_ERROR(broken_);
    }
    try {
      work();
      return Status::Ok();
    } catch (const std::exception& e) {
      std::string why = e.what();
      if (const size_t line = why.find('\n'); line != std::string::npos) why.resize(line);  // a stack follows
      std::string with = "its group";
      if (other >= 0) with = names_[static_cast<size_t>(other)];
      return Break(Status::Unavailable(names_[rank()] + " lost " + with + " while " + what + ": " + why));
    }
  }

  Group group_;
  std::vector<std::string> names_;
  std::vector<std::deque<Message>> sent_;  // by rank
  std::vector<char> values_;               // of all ranks
  std::mutex mutex_;
  Status broken_;
};

class C10dStore : public GroupStore {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::TCPStore> store) : store_(std::move(store)) {}
  int32_t port() const override { return store_->getPort(); }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

Result<std::shared_ptr<Communicator>> MakeCommunicator(const std::string& name, std::vector<std::string> names) {
  try {
    Group group = c10d::resolve_process_group(name);
    if (!std::cmp_equal(group->getSize(), names.size())) {
      return Status::Internal("process group \"" + name + "\" has " + std::to_string(group->getSize()) +
                              " ranks; it should have " + std::to_string(names.size()));
    }
    return std::shared_ptr<Communicator>(std::make_shared<C10dCommunicator>(std::move(group), std::move(names)));
  } catch (const std::exception& e) {
    return Status::NotFound("process group \"" + name + "\": " + e.what());
  }
}

Result<std::unique_ptr<GroupStore>> ServeStore(std::chrono::milliseconds timeout) {
  try {
    c10d::TCPStoreOptions options;
    options.port = 0;  // any that is free
    options.isServer = true;
    options.waitWorkers = false;
    options.timeout = timeout;
    return std::unique_ptr<GroupStore>(
        std::make_unique<C10dStore>(c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options)));
  } catch (const std::exception& e) {
    return Status::Unavailable(std::string("no store for process groups: ") + e.what());
  }
}

constexpr C10dModule kModule = {FASTLLM_VERSION, MakeCommunicator, ServeStore};

}  // namespace
}  // namespace fastllm::runtime

extern "C" FASTLLM_API const fastllm::runtime::C10dModule* FastllmC10dModule() { return &fastllm::runtime::kModule; }
