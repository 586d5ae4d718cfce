#include "runtime/runner/step_guard.h"

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

namespace fastllm::runtime {
namespace {

constexpr int64_t kHashBytes = sizeof(uint64_t);

// FNV-1a over words instead of bytes, with its product turned so that high bits reach low ones.
class Hasher {
 public:
  void Add(uint64_t word) { hash_ = std::rotl((hash_ ^ word) * 0x100000001b3ull, 23); }
  template <typename T>
  void Add(const T* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) Add(static_cast<uint64_t>(values[i]));
  }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325ull;
};

std::string Differs(const std::string& name, uint64_t step_id, const std::string& from) {
  return name + " is about to run another step " + std::to_string(step_id) + " than " + from;
}

Status CompareTensorRanks(const Ranks& ranks, const ops::OpContext& context, uint64_t step_id, uint64_t hash) {
  Communicator& group = ranks.host != nullptr ? *ranks.host : *ranks.tensor;
  const int32_t size = group.size();
  std::vector<uint64_t> hashes(size);
  FASTLLM_RETURN_IF_ERROR(group.AllGather(context, &hash, hashes.data(), kHashBytes, CommType::kByte));
  // What most have is right; of two, nobody can say.
  uint64_t common = hashes[0];
  for (const uint64_t h : hashes) {
    if (std::ranges::count(hashes, h) > std::ranges::count(hashes, common)) common = h;
  }
  const std::vector<int32_t> members = ranks.topology.TensorGroup();
  for (int32_t r = 0; r < size; ++r) {
    if (hashes[r] == common) continue;
    const auto other = std::ranges::find(hashes, common) - hashes.begin();
    return Status::Internal(Differs(ranks.topology.NameOf(members[r]), step_id, ranks.topology.NameOf(members[other])));
  }
  return Status::Ok();
}

Status CompareStages(const Ranks& ranks, const ops::OpContext& context, uint64_t step_id, uint64_t hash) {
  const RankTopology& topology = ranks.topology;
  const int32_t stage = topology.pp_rank();
  if (stage > 0) {
    uint64_t before = 0;
    FASTLLM_RETURN_IF_ERROR(ranks.pipeline->Recv(context, &before, kHashBytes, CommType::kByte, stage - 1));
    if (before != hash) {
      return Status::Internal(Differs(topology.name(), step_id, topology.NameOf(topology.PipelineGroup()[stage - 1])));
    }
  }
  if (topology.last_stage()) return Status::Ok();
  return ranks.pipeline->Send(context, &hash, kHashBytes, CommType::kByte, stage + 1);
}

}  // namespace

uint64_t StepHash(uint64_t step_id, const StepInput& in) {
  Hasher h;
  h.Add(step_id);
  h.Add(static_cast<uint64_t>(in.num_tokens));
  h.Add(static_cast<uint64_t>(in.num_seqs));
  h.Add(in.ids, in.num_tokens);
  h.Add(in.positions, in.num_tokens);
  h.Add(in.slot_mapping, in.num_tokens);
  h.Add(in.query_start, in.num_seqs + 1);
  h.Add(in.seq_len, in.num_seqs);
  return h.hash();
}

Status CompareSteps(const Ranks& ranks, const ops::OpContext& context, uint64_t step_id, uint64_t hash) {
  if (ranks.tensor != nullptr) FASTLLM_RETURN_IF_ERROR(CompareTensorRanks(ranks, context, step_id, hash));
  if (ranks.pipeline != nullptr) return CompareStages(ranks, context, step_id, hash);
  return Status::Ok();
}

}  // namespace fastllm::runtime
