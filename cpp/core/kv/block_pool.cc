#include "core/kv/block_pool.h"

#include <bit>
#include <ranges>
#include <string>

#include "core/base/check.h"
#include "core/kv/prefix_index.h"

namespace fastllm {

BlockPool::BlockPool(int32_t num_blocks, PrefixIndex* index) : num_blocks_(num_blocks), index_(index) {
  FASTLLM_CHECK(num_blocks >= 2, "num_blocks is " + std::to_string(num_blocks) + ", needs the null block and one more");
  records_.resize(static_cast<size_t>(num_blocks) + kMaxLevel);
  for (int32_t level = 1; level <= kMaxLevel; ++level) {
    Record& end = records_[EndOf(level)];
    end.prev = end.next = EndOf(level);
  }
  for (BlockId block = 1; block < num_blocks; ++block) LinkBack(block);
}

void BlockPool::LinkBetween(int32_t prev, BlockId block, int32_t next) {
  records_[block].prev = prev;
  records_[block].next = next;
  records_[prev].next = block;
  records_[next].prev = block;
  occupied_ |= uint64_t{1} << records_[block].level;
  ++num_free_;
}

void BlockPool::LinkBack(BlockId block) {
  const int32_t end = EndOf(records_[block].level);
  LinkBetween(records_[end].prev, block, end);
}

void BlockPool::Unlink(BlockId block) {
  Record& record = records_[block];
  records_[record.prev].next = record.next;
  records_[record.next].prev = record.prev;
  if (record.prev == record.next) occupied_ &= ~(uint64_t{1} << record.level);  // it was alone in the ring
  record.prev = record.next = 0;
  --num_free_;
}

bool BlockPool::Allocate(int32_t count, std::vector<BlockId>* out) {
  FASTLLM_CHECK(count >= 0, "count is " + std::to_string(count));
  if (count > num_free_) return false;
  for (int32_t i = 0; i < count; ++i) {
    const BlockId block = records_[EndOf(std::countr_zero(occupied_))].next;
    Unlink(block);
    records_[block].ref_count = 1;
    records_[block].level = 0;
    if (index_ != nullptr) index_->Erase(block);
    out->push_back(block);
  }
  return true;
}

void BlockPool::Touch(std::span<const BlockId> blocks) {
  for (BlockId block : blocks) {
    if (block == kNullBlock) continue;
    if (records_[block].ref_count++ == 0) Unlink(block);
  }
}

void BlockPool::Free(std::span<const BlockId> table) {
  for (BlockId block : std::views::reverse(table)) {
    if (block == kNullBlock) continue;
    Record& record = records_[block];
    FASTLLM_CHECK(record.ref_count > 0, "block " + std::to_string(block) + " is freed and has no reference");
    if (--record.ref_count > 0) continue;
    if (index_ != nullptr && index_->Contains(block)) {
      LinkBack(block);
    } else {
      record.level = 0;
      LinkBetween(kNullBlock, block, records_[kNullBlock].next);
    }
  }
}

void BlockPool::SetLevel(BlockId block, int32_t level) {
  FASTLLM_CHECK(block > kNullBlock && block < num_blocks_, "block " + std::to_string(block) + " has no level");
  FASTLLM_CHECK(level >= 0 && level <= kMaxLevel, "level is " + std::to_string(level));
  Record& record = records_[block];
  if (record.level == level) return;
  const bool is_free = record.ref_count == 0;
  if (is_free) Unlink(block);
  record.level = level;
  if (is_free) LinkBack(block);
}

bool BlockPool::ResetPrefixCache() {
  if (num_used_blocks() > 0) return false;
  while (occupied_ > 1) SetLevel(records_[EndOf(std::bit_width(occupied_) - 1)].next, 0);
  if (index_ != nullptr) index_->Clear();
  return true;
}

int32_t BlockPool::ref_count(BlockId block) const {
  FASTLLM_CHECK(block >= 0 && block < num_blocks(), "block " + std::to_string(block) + " is not in the pool");
  return records_[block].ref_count;
}

std::vector<BlockId> BlockPool::FreeBlocks() const {
  std::vector<BlockId> blocks;
  blocks.reserve(num_free_);
  for (int32_t level = 0; level <= kMaxLevel; ++level) {
    for (int32_t b = records_[EndOf(level)].next; b != EndOf(level); b = records_[b].next) blocks.push_back(b);
  }
  return blocks;
}

}  // namespace fastllm
