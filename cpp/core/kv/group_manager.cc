#include "core/kv/group_manager.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/check.h"

namespace fastllm {
namespace {

// Layers that attend to every earlier token: a sequence keeps all its blocks, and a hit is usable up to the first
// block that is missing.
class FullGroupManager final : public GroupManager {
 public:
  FullGroupManager(int32_t group, int32_t block_size, BlockPool* pool, const PrefixIndex* index)
      : group_(group), block_size_(block_size), pool_(pool), index_(index) {}

  void SetNumSlots(int32_t count) override { tables_.resize(count); }

  int32_t BlocksToGrow(int32_t num_blocks, int32_t num_tokens) const override {
    return std::max(0, (num_tokens + block_size_ - 1) / block_size_ - num_blocks);
  }

  int32_t HitLength(std::span<const PrefixNode> nodes) const override {
    size_t length = 0;
    while (length < nodes.size() && index_->AnyBlock(nodes[length], group_) != kNullBlock) ++length;
    return static_cast<int32_t>(length);
  }

  int32_t FreeBlocksInHit(std::span<const PrefixNode> nodes) const override {
    return static_cast<int32_t>(std::ranges::count_if(
        nodes, [this](PrefixNode node) { return pool_->ref_count(index_->AnyBlock(node, group_)) == 0; }));
  }

  void AttachHit(KvSlot slot, std::span<const PrefixNode> nodes) override {
    std::vector<BlockId>& table = tables_[slot];
    FASTLLM_CHECK(table.empty(), "a hit goes into an empty table");
    for (PrefixNode node : nodes) table.push_back(index_->AnyBlock(node, group_));
    pool_->Touch(table);
  }

  void Grow(KvSlot slot, int32_t num_tokens, std::vector<BlockId>* added) override {
    std::vector<BlockId>& table = tables_[slot];
    const size_t before = table.size();
    const bool ok = pool_->Allocate(BlocksToGrow(static_cast<int32_t>(before), num_tokens), &table);
    FASTLLM_CHECK(ok, "the pool ran out of blocks that were counted before");
    if (added != nullptr) added->assign(table.begin() + static_cast<ptrdiff_t>(before), table.end());
  }

  void Free(KvSlot slot) override {
    pool_->Free(tables_[slot]);
    tables_[slot].clear();
  }

  const std::vector<BlockId>& table(KvSlot slot) const override { return tables_[slot]; }

 private:
  int32_t group_;
  int32_t block_size_;
  BlockPool* pool_;
  const PrefixIndex* index_;
  std::vector<std::vector<BlockId>> tables_;  // [slot][block]
};

}  // namespace

Status CheckGroupSpec(const KvGroupSpec& spec) {
  switch (spec.kind) {
    case KvGroupKind::kFull:
      if (spec.window == 0) return Status::Ok();
      return Status::InvalidArgument("a full KV group has no window, but window is " + std::to_string(spec.window));
    case KvGroupKind::kSlidingWindow:
      return Status::Unimplemented("KV groups of kind sliding window are not supported; kind full is");
  }
  return Status::InvalidArgument("unknown KV group kind " + std::to_string(static_cast<int>(spec.kind)));
}

std::unique_ptr<GroupManager> MakeGroupManager(const KvGroupSpec& spec, int32_t group, int32_t block_size,
                                               BlockPool* pool, const PrefixIndex* index) {
  const Status status = CheckGroupSpec(spec);
  FASTLLM_CHECK(status.ok(), status.ToString());
  return std::make_unique<FullGroupManager>(group, block_size, pool, index);
}

}  // namespace fastllm
