#include "core/kv/kv_manager.h"

#include <algorithm>

#include "core/base/check.h"

namespace fastllm {
namespace {

const KvConfig& Checked(const KvConfig& config) {
  const Status status = CheckKvConfig(config);
  FASTLLM_CHECK(status.ok(), status.ToString());
  return config;
}

}  // namespace

Status CheckKvConfig(const KvConfig& config) {
  if (config.num_blocks < 2) {
    return Status::InvalidArgument("num_blocks is " + std::to_string(config.num_blocks) +
                                   ", at least 2 are needed (the null block and one more)");
  }
  if (config.block_size < 1) {
    return Status::InvalidArgument("block_size is " + std::to_string(config.block_size) + ", at least 1 is needed");
  }
  if (config.groups.empty()) return Status::InvalidArgument("there are 0 KV groups, at least 1 is needed");
  for (const KvGroupSpec& spec : config.groups) FASTLLM_RETURN_IF_ERROR(CheckGroupSpec(spec));
  return Status::Ok();
}

KvManager::KvManager(const KvConfig& config)
    : block_size_(Checked(config).block_size),
      index_(config.enable_prefix_caching ? std::make_unique<PrefixIndex>(config.num_blocks, config.block_size,
                                                                          static_cast<int32_t>(config.groups.size()))
                                          : nullptr),
      pool_(config.num_blocks, index_.get()),
      coordinator_(config.groups, config.block_size, &pool_, index_.get()),
      row_(config.groups.size()) {}

int32_t KvManager::capacity_tokens() const {
  return static_cast<int32_t>(
      std::min<int64_t>((pool_.num_blocks() - 1) / num_groups() * int64_t{block_size_}, INT32_MAX));
}

void KvManager::Open(KvSlot slot, std::string_view cache_salt) {
  if (slot >= static_cast<KvSlot>(slots_.size())) {
    slots_.resize(slot + 1);
    coordinator_.SetNumSlots(slot + 1);
  }
  FASTLLM_CHECK(coordinator_.num_blocks(slot) == 0, "slot " + std::to_string(slot) + " is in use");
  slots_[slot].hashes.clear();
  slots_[slot].extra_keys = CacheSaltKey(cache_salt);
}

std::span<const TokenId> KvManager::BlockTokens(std::span<const TokenId> tokens, int32_t block) const {
  return tokens.subspan(static_cast<size_t>(block) * block_size_, block_size_);
}

void KvManager::ExtendHashes(Slot* slot, std::span<const TokenId> tokens) {
  const auto num_full = static_cast<int32_t>(tokens.size()) / block_size_;
  for (auto i = static_cast<int32_t>(slot->hashes.size()); i < num_full; ++i) {
    slot->hashes.push_back(i == 0 ? HashBlock(kChainSeed, BlockTokens(tokens, 0), slot->extra_keys)
                                  : HashBlock(slot->hashes.back(), BlockTokens(tokens, i), {}));
  }
}

int32_t KvManager::FindPrefix(KvSlot slot, std::span<const TokenId> tokens) {
  hit_.clear();
  hit_slot_ = slot;
  if (index_ == nullptr || tokens.empty()) return 0;
  Slot& s = slots_[slot];
  ExtendHashes(&s, tokens);
  const int32_t most = (static_cast<int32_t>(tokens.size()) - 1) / block_size_;
  PrefixNode node = kRootNode;
  for (int32_t i = 0; i < most; ++i) {
    node = index_->Find(node, s.hashes[i], BlockTokens(tokens, i), i == 0 ? s.extra_keys : std::string_view());
    if (node == kNoNode) break;
    hit_.push_back(node);
  }
  hit_.resize(coordinator_.HitLength(hit_));
  return static_cast<int32_t>(hit_.size()) * block_size_;
}

bool KvManager::Admit(KvSlot slot, std::span<const TokenId> tokens, int32_t num_hit, int32_t num_new) {
  FASTLLM_CHECK(num_hit == 0 || (hit_slot_ == slot && num_hit == static_cast<int32_t>(hit_.size()) * block_size_),
                "a hit of " + std::to_string(num_hit) + " tokens is not what FindPrefix() found for this slot");
  FASTLLM_CHECK(num_new > 0 && num_hit + num_new <= static_cast<int32_t>(tokens.size()), "new tokens out of range");
  FASTLLM_CHECK(coordinator_.num_blocks(slot) == 0, "slot " + std::to_string(slot) + " is admitted already");
  const auto nodes = std::span<const PrefixNode>(hit_).first(num_hit / block_size_);
  const int32_t num_hit_blocks = static_cast<int32_t>(nodes.size());
  const int32_t all_new = coordinator_.BlocksToGrow(num_hit_blocks, static_cast<int32_t>(tokens.size()));
  // Free blocks of the hit leave the free list too.
  if (all_new + coordinator_.FreeBlocksInHit(nodes) > pool_.num_free_blocks() - reserved_) return false;

  const int32_t new_now = coordinator_.BlocksToGrow(num_hit_blocks, num_hit + num_new);
  Slot& s = slots_[slot];
  coordinator_.AttachHit(slot, nodes);
  s.tail = nodes.empty() ? kRootNode : nodes.back();
  s.num_indexed = num_hit_blocks;
  hit_slot_ = -1;
  coordinator_.Grow(slot, num_hit + num_new, nullptr);
  SetReserved(&s, all_new - new_now);
  IndexFullBlocks(slot, tokens, num_hit + num_new);
  return true;
}

bool KvManager::Extend(KvSlot slot, std::span<const TokenId> tokens, int32_t num_computed, int32_t num_new,
                       std::vector<std::vector<BlockId>>* new_blocks) {
  const int32_t end = num_computed + num_new;
  const int32_t needed = coordinator_.BlocksToGrow(coordinator_.num_blocks(slot), end);
  if (needed > pool_.num_free_blocks()) return false;
  if (needed > 0) {
    hit_slot_ = -1;
    coordinator_.Grow(slot, end, new_blocks);
    SetReserved(&slots_[slot], std::max(0, slots_[slot].reserved - needed));
  }
  IndexFullBlocks(slot, tokens, end);
  return true;
}

void KvManager::IndexFullBlocks(KvSlot slot, std::span<const TokenId> tokens, int32_t num_computed) {
  if (index_ == nullptr) return;
  Slot& s = slots_[slot];
  const int32_t num_full = std::min(num_computed, static_cast<int32_t>(tokens.size())) / block_size_;
  if (num_full <= s.num_indexed) return;
  hit_slot_ = -1;
  ExtendHashes(&s, tokens);
  for (int32_t i = s.num_indexed; i < num_full; ++i) {
    for (int32_t group = 0; group < num_groups(); ++group) row_[group] = table(slot, group)[i];
    s.tail =
        index_->Insert(s.tail, s.hashes[i], BlockTokens(tokens, i), i == 0 ? s.extra_keys : std::string_view(), row_);
  }
  s.num_indexed = num_full;
}

void KvManager::SetReserved(Slot* slot, int32_t blocks) {
  reserved_ += blocks - slot->reserved;
  slot->reserved = blocks;
}

void KvManager::Free(KvSlot slot) {
  Slot& s = slots_[slot];
  coordinator_.Free(slot);
  SetReserved(&s, 0);
  s.tail = kRootNode;
  s.num_indexed = 0;
  hit_slot_ = -1;
}

void KvManager::Close(KvSlot slot) {
  Free(slot);
  slots_[slot].hashes.clear();
  slots_[slot].extra_keys.clear();
}

std::vector<std::vector<BlockId>> KvManager::Tables(KvSlot slot) const {
  std::vector<std::vector<BlockId>> tables;
  tables.reserve(num_groups());
  for (int32_t group = 0; group < num_groups(); ++group) tables.push_back(table(slot, group));
  return tables;
}

bool KvManager::ResetPrefixCache() {
  hit_slot_ = -1;
  return pool_.ResetPrefixCache();
}

}  // namespace fastllm
