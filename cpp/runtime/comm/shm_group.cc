#include "runtime/comm/shm_group.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "runtime/comm/sum_ranks.h"

namespace fastllm::runtime {
namespace {

using Kind = CommCall::Kind;

constexpr size_t kSlotBytes = size_t{256} << 10;
// Up to here each rank adds everything itself: one meeting less is worth more.
constexpr int64_t kShortSumBytes = int64_t{16} << 10;

}  // namespace

size_t ShmGroup::Bytes(size_t num_members, size_t message_bytes) {
  const size_t pairs = num_members * num_members;
  return num_members * (sizeof(Seat) + 2 * kSlotBytes) + pairs * ByteRing::Bytes(1, message_bytes);
}

ShmGroup::ShmGroup(ShmGroupPlace place, ShmTeam* team, std::chrono::milliseconds timeout, Blame blame)
    : place_(std::move(place)),
      team_(team),
      timeout_(timeout),
      blame_(std::move(blame)),
      rank_(static_cast<int32_t>(std::ranges::find(place_.members, team->self()) - place_.members.begin())) {}

char* ShmGroup::Slot(int32_t member) const {
  const size_t number = static_cast<size_t>(member) * 2 + pieces_ % 2;
  return place_.at + place_.members.size() * sizeof(Seat) + number * kSlotBytes;
}

ByteRing ShmGroup::Ring(int32_t from, int32_t to) const {
  const size_t size = place_.members.size();
  const size_t number = static_cast<size_t>(from) * size + static_cast<size_t>(to);
  char* at = place_.at + size * (sizeof(Seat) + 2 * kSlotBytes) + number * ByteRing::Bytes(1, place_.message_bytes);
  return {at, place_.message_bytes, team_, place_.members[from], {place_.members[to]}};
}

Status ShmGroup::Named(const Status& status, int32_t waited_for) const {
  if (status.code() != StatusCode::kDeadlineExceeded || !status.message().empty()) return status;
  return blame_(place_.members[waited_for]);
}

Status ShmGroup::Meet() {
  ++meetings_;
  SeatOf(rank_).arrived.store(meetings_, std::memory_order_seq_cst);
  for (int32_t m = 0; m < size(); ++m) {
    if (m != rank_) team_->Ring(place_.members[m]);
  }
  const ShmDeadline deadline = std::chrono::steady_clock::now() + timeout_;
  for (int32_t m = 0; m < size(); ++m) {
    const Seat& seat = SeatOf(m);
    // By difference, so that the count may pass its end.
    const auto here = [&] {
      return static_cast<int32_t>(seat.arrived.load(std::memory_order_acquire) - meetings_) >= 0;
    };
    if (m == rank_ || here()) continue;
    FASTLLM_RETURN_IF_ERROR(Named(team_->Await(here, place_.members[m], deadline), m));
  }
  return Status::Ok();
}

Status ShmGroup::Enter(const CommCall& call) {
  FASTLLM_RETURN_IF_ERROR(team_->broken());
  const auto at = pieces_ % 2;
  SeatOf(rank_).call[at] = call;
  FASTLLM_RETURN_IF_ERROR(Meet());
  for (int32_t m = 1; m < size(); ++m) {
    if (SeatOf(m).call[at].Fits(SeatOf(0).call[at])) continue;
    const Status why = Status::Internal(place_.names[m] + " calls for " + SeatOf(m).call[at].Text() + " where " +
                                        place_.names[0] + " calls for " + SeatOf(0).call[at].Text());
    team_->Break(why);
    return why;
  }
  return Status::Ok();
}

Status ShmGroup::SumPiece(char* data, int64_t count, const CommCall& call) {
  const int64_t element = CommTypeSize(call.type);
  std::memcpy(Slot(rank_), data, static_cast<size_t>(count * element));
  FASTLLM_RETURN_IF_ERROR(Enter(call));
  std::vector<const void*> slots;
  for (int32_t m = 0; m < size(); ++m) slots.push_back(Slot(m));
  if (count * element <= kShortSumBytes) {
    void* out = data;
    SumRanks(slots, {&out, 1}, 0, count, call.type);
    return Status::Ok();
  }
  // Into the own slot, of which nobody else reads this part before the next meeting.
  const RankPart own = PartOf(count, rank_, size());
  void* out = Slot(rank_);
  SumRanks(slots, {&out, 1}, own.begin, own.end, call.type);
  FASTLLM_RETURN_IF_ERROR(Meet());
  for (int32_t m = 0; m < size(); ++m) {
    const RankPart part = PartOf(count, m, size());
    std::memcpy(data + part.begin * element, Slot(m) + part.begin * element,
                static_cast<size_t>((part.end - part.begin) * element));
  }
  return Status::Ok();
}

Status ShmGroup::AllReduceSum(const ops::OpContext& /*context*/, void* data, int64_t count, CommType type) {
  FASTLLM_RETURN_IF_ERROR(CheckSum(type, place_.names[rank_]));
  const int64_t element = CommTypeSize(type);
  const int64_t most = static_cast<int64_t>(kSlotBytes) / element;
  for (int64_t done = 0; done < count; done += most, ++pieces_) {
    FASTLLM_RETURN_IF_ERROR(SumPiece(static_cast<char*>(data) + done * element, std::min(most, count - done),
                                     {Kind::kAllReduce, type, count, 0, nullptr}));
  }
  return Status::Ok();
}

Status ShmGroup::AllGather(const ops::OpContext& /*context*/, const void* in, void* out, int64_t count, CommType type) {
  const size_t bytes = static_cast<size_t>(count * CommTypeSize(type));
  for (size_t done = 0; done < bytes; done += kSlotBytes, ++pieces_) {
    const size_t part = std::min(kSlotBytes, bytes - done);
    std::memcpy(Slot(rank_), static_cast<const char*>(in) + done, part);
    FASTLLM_RETURN_IF_ERROR(Enter({Kind::kAllGather, type, count, 0, nullptr}));
    for (int32_t m = 0; m < size(); ++m) {
      std::memcpy(static_cast<char*>(out) + static_cast<size_t>(m) * bytes + done, Slot(m), part);
    }
  }
  return Status::Ok();
}

Status ShmGroup::Broadcast(const ops::OpContext& /*context*/, void* data, int64_t count, CommType type, int32_t root) {
  const size_t bytes = static_cast<size_t>(count * CommTypeSize(type));
  for (size_t done = 0; done < bytes; done += kSlotBytes, ++pieces_) {
    const size_t part = std::min(kSlotBytes, bytes - done);
    char* at = static_cast<char*>(data) + done;
    if (rank_ == root) std::memcpy(Slot(rank_), at, part);
    FASTLLM_RETURN_IF_ERROR(Enter({Kind::kBroadcast, type, count, root, nullptr}));
    if (rank_ != root) std::memcpy(at, Slot(root), part);
  }
  return Status::Ok();
}

Status ShmGroup::Barrier(const ops::OpContext& /*context*/) {
  const Status status = Enter({});
  ++pieces_;
  return status;
}

Status ShmGroup::Send(const ops::OpContext& /*context*/, const void* data, int64_t count, CommType type, int32_t to) {
  FASTLLM_RETURN_IF_ERROR(team_->broken());
  const std::string_view bytes(static_cast<const char*>(data), static_cast<size_t>(count * CommTypeSize(type)));
  return Named(Ring(rank_, to).Write({&bytes, 1}, std::chrono::steady_clock::now() + timeout_), to);
}

Status ShmGroup::Recv(const ops::OpContext& /*context*/, void* data, int64_t count, CommType type, int32_t from) {
  const auto bytes = static_cast<size_t>(count * CommTypeSize(type));
  FASTLLM_RETURN_IF_ERROR(team_->broken());
  const Result<size_t> sent = Ring(from, rank_).ReadInto(data, bytes, std::chrono::steady_clock::now() + timeout_);
  if (!sent.ok()) return Named(sent.status(), from);
  if (*sent == bytes) return Status::Ok();
  const Status why = Status::Internal(place_.names[from] + " sent " + std::to_string(*sent) + " bytes where " +
                                      place_.names[rank_] + " expects " + std::to_string(bytes));
  team_->Break(why);
  return why;
}

}  // namespace fastllm::runtime
