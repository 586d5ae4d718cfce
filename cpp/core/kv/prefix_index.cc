#include "core/kv/prefix_index.h"

#include <algorithm>
#include <bit>
#include <string>

#include "core/base/check.h"

namespace fastllm {

PrefixIndex::PrefixIndex(int32_t num_blocks, int32_t block_size, int32_t num_groups)
    : block_size_(block_size), num_groups_(num_groups), entries_(num_blocks) {
  FASTLLM_CHECK(num_blocks >= 1 && block_size >= 1 && num_groups >= 1, "sizes must be positive");
  buckets_.assign(std::bit_ceil(static_cast<size_t>(num_blocks)), kNoNode);
  // With full groups there is at most one node for each block, so that nothing is moved later.
  nodes_.reserve(num_blocks);
  tokens_.reserve(static_cast<size_t>(num_blocks) * block_size);
  heads_.reserve(static_cast<size_t>(num_blocks) * num_groups);
}

PrefixNode PrefixIndex::Find(PrefixNode parent, const BlockHash& hash, std::span<const TokenId> tokens,
                             std::string_view extra_keys) const {
  for (PrefixNode id = buckets_[Bucket(hash.lo)]; id != kNoNode; id = nodes_[id].next) {
    const Node& node = nodes_[id];
    if (node.hash == hash.lo && node.parent == parent && node.extra_keys == extra_keys &&
        std::equal(tokens.begin(), tokens.end(), TokensOf(id))) {
      return id;
    }
  }
  return kNoNode;
}

PrefixNode PrefixIndex::NewNode(PrefixNode parent, const BlockHash& hash, std::span<const TokenId> tokens,
                                std::string_view extra_keys) {
  PrefixNode id = unused_;
  if (id != kNoNode) {
    unused_ = nodes_[id].next;
  } else {
    id = static_cast<PrefixNode>(nodes_.size());
    nodes_.emplace_back();
    tokens_.resize(tokens_.size() + block_size_);
    heads_.resize(heads_.size() + num_groups_, kNullBlock);
  }
  Node& node = nodes_[id];
  node.hash = hash.lo;
  node.parent = parent;
  node.holders = 0;
  node.extra_keys = extra_keys;
  std::copy(tokens.begin(), tokens.end(), tokens_.begin() + static_cast<ptrdiff_t>(id) * block_size_);
  node.next = buckets_[Bucket(hash.lo)];
  buckets_[Bucket(hash.lo)] = id;
  Hold(parent);
  ++num_nodes_;
  return id;
}

PrefixNode PrefixIndex::Insert(PrefixNode parent, const BlockHash& hash, std::span<const TokenId> tokens,
                               std::string_view extra_keys, std::span<const BlockId> blocks) {
  FASTLLM_CHECK(static_cast<int32_t>(tokens.size()) == block_size_, "only full blocks are indexed");
  FASTLLM_CHECK(static_cast<int32_t>(blocks.size()) == num_groups_, "one block for each group");
  PrefixNode id = Find(parent, hash, tokens, extra_keys);
  if (id == kNoNode) id = NewNode(parent, hash, tokens, extra_keys);
  for (int32_t group = 0; group < num_groups_; ++group) {
    const BlockId block = blocks[group];
    if (block == kNullBlock) continue;
    FASTLLM_CHECK(!Contains(block), "block " + std::to_string(block) + " is in the index already");
    BlockId& head = heads_[id * num_groups_ + group];
    if (events_ != nullptr && head == kNullBlock) ReportStored(id, group);
    entries_[block] = {id, group, kNullBlock, head};
    if (head != kNullBlock) entries_[head].prev = block;
    head = block;
    ++nodes_[id].holders;
    ++num_cached_;
  }
  return id;
}

bool PrefixIndex::Erase(BlockId block) {
  if (!Contains(block)) return false;
  const Entry entry = entries_[block];
  if (entry.prev != kNullBlock) {
    entries_[entry.prev].next = entry.next;
  } else {
    heads_[entry.node * num_groups_ + entry.group] = entry.next;
  }
  if (entry.next != kNullBlock) entries_[entry.next].prev = entry.prev;
  entries_[block] = Entry{};
  --num_cached_;
  if (events_ != nullptr && AnyBlock(entry.node, entry.group) == kNullBlock) {
    events_->Removed(entry.group, nodes_[entry.node].hash);
  }
  DropHolder(entry.node);
  return true;
}

// A block of the group covers the node and the ones above it that make up one block of the group.
void PrefixIndex::ReportStored(PrefixNode node, int32_t group) {
  const int32_t count = events_->group_blocks(group);
  PrefixNode parent = node;
  for (int32_t i = 0; i < count; ++i) parent = nodes_[parent].parent;
  const std::span<TokenId> out = events_->BeginStored(group, nodes_[node].hash, parent != kRootNode,
                                                      parent == kRootNode ? 0 : nodes_[parent].hash);
  if (out.empty()) return;
  for (int32_t i = count - 1; i >= 0; --i, node = nodes_[node].parent) {
    const auto tokens = tokens_.begin() + static_cast<ptrdiff_t>(node) * block_size_;
    std::copy(tokens, tokens + block_size_, out.begin() + static_cast<ptrdiff_t>(i) * block_size_);
  }
  events_->Publish();
}

void PrefixIndex::DropHolder(PrefixNode id) {
  while (id != kRootNode && --nodes_[id].holders == 0) {
    Unchain(id);
    const PrefixNode parent = nodes_[id].parent;
    nodes_[id].parent = kNoNode;
    nodes_[id].next = unused_;
    unused_ = id;
    --num_nodes_;
    id = parent;
  }
}

void PrefixIndex::Unchain(PrefixNode id) {
  PrefixNode* link = &buckets_[Bucket(nodes_[id].hash)];
  while (*link != id) link = &nodes_[*link].next;
  *link = nodes_[id].next;
}

void PrefixIndex::Clear() {
  std::ranges::fill(entries_, Entry{});
  std::ranges::fill(buckets_, kNoNode);
  nodes_.clear();
  tokens_.clear();
  heads_.clear();
  unused_ = kNoNode;
  num_cached_ = 0;
  num_nodes_ = 0;
  if (events_ != nullptr) events_->Cleared();
}

}  // namespace fastllm
