#include "runtime/comm/memory_hub.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/comm/memory_group.h"
#include "runtime/comm/sum_ranks.h"

namespace fastllm::runtime {
namespace {

using Kind = CommCall::Kind;

class MemoryCommunicator : public Communicator {
 public:
  MemoryCommunicator(std::shared_ptr<const void> hub, std::shared_ptr<MemoryGroup> group, int32_t rank,
                     std::vector<std::string> names)
      : hub_(std::move(hub)), group_(std::move(group)), rank_(rank), names_(std::move(names)) {}

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return group_->size(); }

  Status AllReduceSum(const ops::OpContext& /*context*/, void* data, int64_t count, CommType type) override {
    FASTLLM_RETURN_IF_ERROR(CheckSum(type, names_[rank_]));
    return Meet({Kind::kAllReduce, type, count, 0, data}, [&](const std::vector<CommCall>& calls) {
      // Each rank sums its part for all of them.
      std::vector<void*> values;
      for (const CommCall& call : calls) values.push_back(call.data);
      const RankPart part = PartOf(count, rank_, size());
      SumRanks(values, values, part.begin, part.end, type);
    });
  }

  Status AllGather(const ops::OpContext& /*context*/, const void* in, void* out, int64_t count,
                   CommType type) override {
    const size_t bytes = static_cast<size_t>(count * CommTypeSize(type));
    return Meet({Kind::kAllGather, type, count, 0, const_cast<void*>(in)}, [&](const std::vector<CommCall>& calls) {
      for (size_t r = 0; r < calls.size(); ++r) {
        char* to = static_cast<char*>(out) + r * bytes;
        if (to != calls[r].data) std::memcpy(to, calls[r].data, bytes);
      }
    });
  }

  Status Broadcast(const ops::OpContext& /*context*/, void* data, int64_t count, CommType type, int32_t root) override {
    return Meet({Kind::kBroadcast, type, count, root, data}, [&](const std::vector<CommCall>& calls) {
      if (rank_ != root) std::memcpy(data, calls[root].data, static_cast<size_t>(count * CommTypeSize(type)));
    });
  }

  Status Send(const ops::OpContext& /*context*/, const void* data, int64_t count, CommType type, int32_t to) override {
    return group_->Put(rank_, to, data, static_cast<size_t>(count * CommTypeSize(type)));
  }

  Status Recv(const ops::OpContext& /*context*/, void* data, int64_t count, CommType type, int32_t from) override {
    const auto bytes = static_cast<size_t>(count * CommTypeSize(type));
    FASTLLM_ASSIGN_OR_RETURN(const size_t sent, group_->Take(from, rank_, data, bytes));
    if (sent == bytes) return Status::Ok();
    const Status why = Status::Internal(names_[from] + " sent " + std::to_string(sent) + " bytes where " +
                                        names_[rank_] + " expects " + std::to_string(bytes));
    group_->Break(why);
    return why;
  }

  Status Barrier(const ops::OpContext& /*context*/) override {
    return Meet({}, [](const std::vector<CommCall>&) {});
  }

  void Abort(const Status& why) override { group_->Break(why); }
  Status broken() const override { return group_->broken(); }

 private:
  template <typename Work>
  Status Meet(const CommCall& call, const Work& work) {
    FASTLLM_RETURN_IF_ERROR(group_->Enter(rank_, call));
    const std::vector<CommCall>& calls = group_->calls();
    // All see the same calls, so either everybody works or nobody does.
    const auto other = std::find_if(calls.begin(), calls.end(), [&](const CommCall& c) { return !c.Fits(calls[0]); });
    Status status;
    if (other == calls.end()) {
      work(calls);
    } else {
      status = Status::Internal(names_[other - calls.begin()] + " calls for " + other->Text() + " where " + names_[0] +
                                " calls for " + calls[0].Text());
    }
    group_->Leave(rank_);
    if (!status.ok()) group_->Break(status);
    return status;
  }

  std::shared_ptr<const void> hub_;  // which the group asks whom to blame
  std::shared_ptr<MemoryGroup> group_;
  int32_t rank_;
  std::vector<std::string> names_;  // of the members
};

}  // namespace

struct MemoryHub::Impl {
  struct Group {
    std::vector<int32_t> members;
    std::shared_ptr<MemoryGroup> group;
  };

  const Group* Find(const std::vector<int32_t>& members) const {
    const auto at = std::ranges::find(groups, members, &Group::members);
    return at == groups.end() ? nullptr : &*at;
  }

  void Add(const std::vector<int32_t>& members, std::chrono::milliseconds timeout) {
    if (members.size() < 2 || Find(members) != nullptr) return;
    const auto blame = [this, members](int32_t missing, std::chrono::milliseconds waited) {
      const int32_t culprit = Culprit(members[missing]);
      Status why(StatusCode::kDeadlineExceeded, topology.NameOf(culprit) + " did not answer the other ranks within " +
                                                    std::to_string(waited.count()) + " ms");
      for (const Group& g : groups)
        g.group->Break(why);  // before the ranks of other groups blame one that has given up
    };
    groups.push_back({members, std::make_shared<MemoryGroup>(static_cast<int32_t>(members.size()), timeout, blame)});
  }

  int32_t Culprit(int32_t rank) const {
    for (int32_t steps = 0; steps < topology.world(); ++steps) {
      std::optional<int32_t> next;
      for (const Group& g : groups) {
        const auto at = std::ranges::find(g.members, rank);
        if (at == g.members.end()) continue;
        const auto waits = g.group->WaitsFor(static_cast<int32_t>(at - g.members.begin()));
        if (waits && std::cmp_less(*waits, g.members.size())) next = g.members[*waits];
      }
      if (!next) return rank;
      rank = *next;
    }
    return rank;  // they wait in a circle
  }

  RankTopology topology;  // of rank 0
  std::vector<Group> groups;
};

MemoryHub::MemoryHub(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
MemoryHub::~MemoryHub() = default;

Result<std::unique_ptr<MemoryHub>> MemoryHub::Create(const ParallelSizes& sizes, std::chrono::milliseconds timeout) {
  auto impl = std::make_shared<Impl>();
  FASTLLM_ASSIGN_OR_RETURN(impl->topology, RankTopology::Create(sizes, 0));
  if (sizes.data != 1) {
    return Status::InvalidArgument("data_parallel_size is " + std::to_string(sizes.data) +
                                   "; replicas share no communicators, so it must be 1 here");
  }
  for (int32_t rank = 0; rank < sizes.world(); ++rank) {
    const RankTopology at{sizes, rank};
    impl->Add(at.TensorGroup(), timeout);
    impl->Add(at.PipelineGroup(), timeout);
  }
  return std::unique_ptr<MemoryHub>(new MemoryHub(std::move(impl)));
}

Ranks MemoryHub::RanksOf(int32_t rank) const {
  const RankTopology topology{impl_->topology.sizes, rank};
  const auto communicator = [&](const std::vector<int32_t>& members) -> std::shared_ptr<Communicator> {
    const Impl::Group* g = impl_->Find(members);
    if (g == nullptr) return nullptr;
    std::vector<std::string> names;
    for (const int32_t member : members) names.push_back(topology.NameOf(member));
    const auto at = static_cast<int32_t>(std::ranges::find(members, rank) - members.begin());
    return std::make_shared<MemoryCommunicator>(impl_, g->group, at, std::move(names));
  };
  return {topology, communicator(topology.TensorGroup()), communicator(topology.PipelineGroup()), nullptr};
}

void MemoryHub::Abort(const Status& why) {
  for (const Impl::Group& g : impl_->groups) g.group->Break(why);
}

Status MemoryHub::broken() const {
  for (const Impl::Group& g : impl_->groups) FASTLLM_RETURN_IF_ERROR(g.group->broken());
  return Status::Ok();
}

void MemoryHub::SetTimeout(std::chrono::milliseconds timeout) {
  for (const Impl::Group& g : impl_->groups) g.group->SetTimeout(timeout);
}

int32_t MemoryHub::Culprit(int32_t rank) const { return impl_->Culprit(rank); }

}  // namespace fastllm::runtime
