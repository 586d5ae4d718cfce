#include "runtime/comm/shm_hub.h"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/comm/shm_group.h"

namespace fastllm::runtime {
namespace {

constexpr size_t kTensorMessageBytes = 4096;  // tensor ranks have no messages but in tests

struct Place {
  std::vector<int32_t> ranks;
  size_t offset = 0;
  size_t message_bytes = 0;
};

// Every group of the node, once.
std::vector<Place> PlacesOf(const ShmHubPlan& plan, size_t* bytes) {
  std::vector<Place> places;
  *bytes = 0;
  const auto add = [&](std::vector<int32_t> ranks, size_t message_bytes) {
    if (ranks.size() < 2 || !plan.node.HasAll(ranks)) return;
    if (std::ranges::find(places, ranks, &Place::ranks) != places.end()) return;
    const size_t own = ShmGroup::Bytes(ranks.size(), message_bytes);
    places.push_back({std::move(ranks), *bytes, message_bytes});
    *bytes += own;
  };
  for (int32_t rank = plan.node.first; rank < plan.node.first + plan.node.count; ++rank) {
    const RankTopology topology{plan.sizes, rank};
    add(topology.TensorGroup(), kTensorMessageBytes);
    add(topology.PipelineGroup(), plan.message_bytes);
  }
  return places;
}

}  // namespace

bool NodeRanks::HasAll(const std::vector<int32_t>& ranks) const {
  return std::ranges::all_of(ranks, [this](int32_t rank) { return Has(rank); });
}

size_t ShmHubPlan::Bytes() const {
  size_t bytes = 0;
  PlacesOf(*this, &bytes);
  return bytes;
}

Ranks ShmRanksOf(const ShmHubPlan& plan, char* memory, ShmTeam* team) {
  const RankTopology topology{plan.sizes, plan.node.first + team->self()};
  size_t bytes = 0;
  const std::vector<Place> places = PlacesOf(plan, &bytes);
  const auto blame = [team, topology, first = plan.node.first, timeout = plan.timeout](int32_t member) {
    const int32_t culprit = first + team->Culprit(member);
    team->Break(Status(StatusCode::kDeadlineExceeded, topology.NameOf(culprit) +
                                                          " did not answer the other ranks within " +
                                                          std::to_string(timeout.count()) + " ms"));
    return team->broken();  // or what somebody else has said before
  };
  const auto communicator = [&](const std::vector<int32_t>& ranks) -> std::shared_ptr<Communicator> {
    const auto place = std::ranges::find(places, ranks, &Place::ranks);
    if (place == places.end()) return nullptr;
    ShmGroupPlace group{memory + place->offset, {}, {}, place->message_bytes};
    for (const int32_t rank : ranks) {
      group.members.push_back(rank - plan.node.first);
      group.names.push_back(topology.NameOf(rank));
    }
    return std::make_shared<ShmGroup>(std::move(group), team, plan.timeout, blame);
  };
  return {topology, communicator(topology.TensorGroup()), communicator(topology.PipelineGroup()), nullptr};
}

}  // namespace fastllm::runtime
