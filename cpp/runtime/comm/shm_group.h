// ShmGroup: where the ranks of one group of a ShmHub meet, in shared memory. Only for the sources of the hub.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fastllm/status.h"
#include "runtime/comm/comm_call.h"
#include "runtime/comm/communicator.h"
#include "runtime/shm/byte_ring.h"
#include "runtime/shm/shm_team.h"

namespace fastllm::runtime {

// Where a group is and who is in it; the same on all its ranks.
struct ShmGroupPlace {
  char* at = nullptr;            // aligned to 64 bytes, zeros before the first use
  std::vector<int32_t> members;  // of the team, in order of the group
  std::vector<std::string> names;
  size_t message_bytes = 0;  // room for messages from one to another
};

// Values go through a slot of each rank in pieces. A piece of a call is one meeting: each copies its values into its
// slot, arrives, and reads the others'. Long sums have a second one: each rank adds a part for all in between. Slots
// come in pairs used in turn, so that a rank which is a piece ahead writes where nobody reads: to be two pieces ahead
// it has to meet those who read.
class ShmGroup : public Communicator {
 public:
  static size_t Bytes(size_t num_members, size_t message_bytes);
  // Told of a member of the team that did not come in time; breaks the team.
  using Blame = std::function<Status(int32_t member)>;

  ShmGroup(ShmGroupPlace place, ShmTeam* team, std::chrono::milliseconds timeout, Blame blame);

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return static_cast<int32_t>(place_.members.size()); }
  Status AllReduceSum(const ops::OpContext& context, void* data, int64_t count, CommType type) override;
  Status AllGather(const ops::OpContext& context, const void* in, void* out, int64_t count, CommType type) override;
  Status Broadcast(const ops::OpContext& context, void* data, int64_t count, CommType type, int32_t root) override;
  Status Send(const ops::OpContext& context, const void* data, int64_t count, CommType type, int32_t to) override;
  Status Recv(const ops::OpContext& context, void* data, int64_t count, CommType type, int32_t from) override;
  Status Barrier(const ops::OpContext& context) override;
  void Abort(const Status& why) override { team_->Break(why); }
  Status broken() const override { return team_->broken(); }

 private:
  struct alignas(64) Seat {
    std::atomic<uint32_t> arrived{0};  // meetings that the member has come to
    CommCall call[2];                  // of the piece; the pointer means nothing here
  };

  Seat& SeatOf(int32_t member) const { return reinterpret_cast<Seat*>(place_.at)[member]; }
  char* Slot(int32_t member) const;  // of the piece in hand
  ByteRing Ring(int32_t from, int32_t to) const;
  // Until all have come as often as this rank.
  Status Meet();
  // The first meeting of a piece: `call` is what the whole call is, the same for all its pieces.
  Status Enter(const CommCall& call);
  Status Named(const Status& status, int32_t waited_for) const;
  Status SumPiece(char* data, int64_t count, const CommCall& call);

  ShmGroupPlace place_;
  ShmTeam* team_;
  std::chrono::milliseconds timeout_;
  Blame blame_;
  int32_t rank_;
  uint32_t pieces_ = 0;
  uint32_t meetings_ = 0;
};

}  // namespace fastllm::runtime
