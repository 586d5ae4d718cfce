#include "core/kv/group_manager.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace fastllm {

GroupManager::GroupManager(std::unique_ptr<KvNeed> need, int32_t group, int32_t block_size, int32_t blocks_per_entry,
                           BlockPool* pool, const PrefixIndex* index)
    : need_(std::move(need)),
      group_(group),
      block_size_(block_size),
      blocks_per_entry_(blocks_per_entry),
      pool_(pool),
      index_(index) {}

BlockId GroupManager::HitBlock(std::span<const PrefixNode> nodes, int32_t entry) const {
  return index_->AnyBlock(nodes[static_cast<size_t>(entry + 1) * blocks_per_entry_ - 1], group_);
}

int32_t GroupManager::FirstInHit(int32_t entries, int32_t num_computed) const {
  return std::min(entries, need_->FirstNeeded(num_computed));
}

int32_t GroupManager::HitLength(std::span<const PrefixNode> nodes) const {
  const auto most = static_cast<int32_t>(nodes.size()) / blocks_per_entry_;
  const int32_t needed = need_->EntriesForHit();
  int32_t length = 0;
  for (int32_t entry = 0, run = 0; entry < most; ++entry) {
    run = HitBlock(nodes, entry) == kNullBlock ? 0 : run + 1;
    if (run >= std::min(needed, entry + 1)) {
      length = entry + 1;
    } else if (needed == KvNeed::kAll) {
      break;
    }
  }
  return length * blocks_per_entry_;
}

bool GroupManager::CanRepeatLast(std::span<const PrefixNode> nodes) const {
  const auto entries = static_cast<int32_t>(nodes.size()) / blocks_per_entry_;
  if (!need_->CanRepeatLast() || std::cmp_not_equal(entries * blocks_per_entry_, nodes.size())) return false;
  for (int32_t entry = FirstInHit(entries, entries * block_size_ - 1); entry < entries; ++entry) {
    if (HitBlock(nodes, entry) == kNullBlock) return false;
  }
  return true;
}

int32_t GroupManager::BlocksInHit(std::span<const PrefixNode> nodes, int32_t num_computed) const {
  const auto entries = static_cast<int32_t>(nodes.size()) / blocks_per_entry_;
  return entries - FirstInHit(entries, num_computed);
}

int32_t GroupManager::FreeBlocksInHit(std::span<const PrefixNode> nodes, int32_t num_computed) const {
  const auto entries = static_cast<int32_t>(nodes.size()) / blocks_per_entry_;
  int32_t count = 0;
  for (int32_t entry = FirstInHit(entries, num_computed); entry < entries; ++entry) {
    if (pool_->ref_count(HitBlock(nodes, entry)) == 0) ++count;
  }
  return count;
}

void GroupManager::AttachHit(KvSlot slot, std::span<const PrefixNode> nodes, int32_t num_computed) {
  Table& table = tables_[slot];
  FASTLLM_CHECK(table.blocks.empty(), "a hit goes into an empty table");
  const auto entries = static_cast<int32_t>(nodes.size()) / blocks_per_entry_;
  table.first = FirstInHit(entries, num_computed);
  table.num_held = entries - table.first;
  table.blocks.resize(table.first, kNullBlock);
  for (int32_t entry = table.first; entry < entries; ++entry) table.blocks.push_back(HitBlock(nodes, entry));
  pool_->Touch(table.blocks);
}

int32_t GroupManager::BlocksToGrow(int32_t num_covered, int32_t end) const {
  const int32_t entries = EntriesFor(end);
  return std::max(0, entries - std::max(num_covered / block_size_, need_->FirstGrown(end)));
}

void GroupManager::FreeBehind(KvSlot slot, int32_t num_settled) {
  Table& table = tables_[slot];
  const int32_t last = std::min(need_->FirstNeeded(num_settled), static_cast<int32_t>(table.blocks.size()));
  if (last <= table.first) return;
  const auto behind = std::span(table.blocks).subspan(table.first, last - table.first);
  pool_->Free(behind);
  for (BlockId& block : behind) {
    if (block != kNullBlock) --table.num_held;
    block = kNullBlock;
  }
  table.first = last;
}

void GroupManager::Grow(KvSlot slot, int32_t end, std::vector<BlockId>* added) {
  Table& table = tables_[slot];
  const auto before = static_cast<int32_t>(table.blocks.size());
  const int32_t entries = std::max(before, EntriesFor(end));
  const int32_t count = BlocksToGrow(before * block_size_, end);
  table.blocks.resize(entries - count, kNullBlock);
  const bool ok = pool_->Allocate(count, &table.blocks);
  FASTLLM_CHECK(ok, "the pool ran out of blocks that were counted before");
  table.num_held += count;
  if (added != nullptr) added->assign(table.blocks.begin() + before, table.blocks.end());
}

void GroupManager::Free(KvSlot slot) {
  Table& table = tables_[slot];
  pool_->Free(table.blocks);
  table.blocks.clear();
  table.first = 0;
  table.num_held = 0;
}

BlockId GroupManager::BlockEndingAt(KvSlot slot, int32_t unit) const {
  if ((unit + 1) % blocks_per_entry_ != 0) return kNullBlock;
  return table(slot)[(unit + 1) / blocks_per_entry_ - 1];
}

}  // namespace fastllm
