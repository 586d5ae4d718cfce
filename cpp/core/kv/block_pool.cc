#include "core/kv/block_pool.h"

#include <ranges>
#include <string>

#include "core/base/check.h"
#include "core/kv/prefix_index.h"

namespace fastllm {

BlockPool::BlockPool(int32_t num_blocks, PrefixIndex* index) : index_(index) {
  FASTLLM_CHECK(num_blocks >= 2, "num_blocks is " + std::to_string(num_blocks) + ", needs the null block and one more");
  records_.resize(num_blocks);
  for (BlockId block = 1; block < num_blocks; ++block) LinkBetween(records_[kNullBlock].prev, block, kNullBlock);
}

void BlockPool::LinkBetween(BlockId prev, BlockId block, BlockId next) {
  records_[block].prev = prev;
  records_[block].next = next;
  records_[prev].next = block;
  records_[next].prev = block;
  ++num_free_;
}

void BlockPool::Unlink(BlockId block) {
  Record& record = records_[block];
  records_[record.prev].next = record.next;
  records_[record.next].prev = record.prev;
  record.prev = record.next = kNullBlock;
  --num_free_;
}

bool BlockPool::Allocate(int32_t count, std::vector<BlockId>* out) {
  FASTLLM_CHECK(count >= 0, "count is " + std::to_string(count));
  if (count > num_free_) return false;
  for (int32_t i = 0; i < count; ++i) {
    const BlockId block = records_[kNullBlock].next;
    Unlink(block);
    records_[block].ref_count = 1;
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
      LinkBetween(records_[kNullBlock].prev, block, kNullBlock);
    } else {
      LinkBetween(kNullBlock, block, records_[kNullBlock].next);
    }
  }
}

bool BlockPool::ResetPrefixCache() {
  if (num_used_blocks() > 0) return false;
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
  for (BlockId b = records_[kNullBlock].next; b != kNullBlock; b = records_[b].next) blocks.push_back(b);
  return blocks;
}

}  // namespace fastllm
