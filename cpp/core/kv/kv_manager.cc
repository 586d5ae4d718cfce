#include "core/kv/kv_manager.h"

#include <algorithm>
#include <limits>
#include <random>
#include <ranges>
#include <utility>

#include "core/base/check.h"

namespace fastllm {
namespace {

const KvConfig& Checked(const KvConfig& config) {
  const Status status = CheckKvConfig(config);
  FASTLLM_CHECK(status.ok(), status.ToString());
  return config;
}

BlockHashSpec HashSpec(const KvConfig& config) {
  if (config.prefix_hash_algo != PrefixHashAlgo::kXxHash) return {config.prefix_hash_algo, 0};
  if (config.prefix_hash_seed) return {config.prefix_hash_algo, *config.prefix_hash_seed};
  std::random_device random;
  return {config.prefix_hash_algo, (uint64_t{random()} << 32) | random()};
}

std::unique_ptr<PrefixIndex> MakeIndex(const KvConfig& config) {
  auto index =
      std::make_unique<PrefixIndex>(config.num_blocks, config.block_size, static_cast<int32_t>(config.groups.size()));
  if (config.enable_prefix_caching && config.kv_event_capacity > 0) {
    index->SetEvents(
        std::make_unique<KvEventRing>(config.kv_event_capacity, config.block_size, GroupBlockUnits(config)));
  }
  return index;
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
  if (config.max_step_tokens < 0) {
    return Status::InvalidArgument("max_step_tokens is " + std::to_string(config.max_step_tokens) +
                                   ", at least 0 is needed");
  }
  if (config.kv_event_capacity < 0) {
    return Status::InvalidArgument("kv_event_capacity is " + std::to_string(config.kv_event_capacity) +
                                   ", at least 0 is needed");
  }
  if (config.groups.empty()) return Status::InvalidArgument("there are 0 KV groups, at least 1 is needed");
  for (const KvGroupSpec& spec : config.groups) FASTLLM_RETURN_IF_ERROR(CheckGroupSpec(spec, config.block_size));
  return Status::Ok();
}

KvManager::KvManager(const KvConfig& config, KvClock clock)
    : block_size_(Checked(config).block_size),
      hashing_{HashSpec(config), config.enable_prefix_caching},
      index_(MakeIndex(config)),
      pool_(config.num_blocks, index_.get()),
      coordinator_(config, &pool_, index_.get()),
      pins_(config.num_blocks, std::move(clock)) {
  scratch_.blocks.resize(config.groups.size());
}

int32_t KvManager::capacity_tokens() const {
  int32_t fits = 0, too_many = std::numeric_limits<int32_t>::max();
  if (coordinator_.PeakBlocks(too_many) < pool_.num_blocks()) return too_many;
  while (too_many - fits > 1) {
    const int32_t middle = fits + (too_many - fits) / 2;
    (coordinator_.PeakBlocks(middle) < pool_.num_blocks() ? fits : too_many) = middle;
  }
  return fits;
}

void KvManager::Open(KvSlot slot, std::string_view cache_salt) {
  ExtraKeys keys;
  keys.cache_salt = cache_salt;
  Open(slot, std::move(keys));
}

void KvManager::Open(KvSlot slot, ExtraKeys keys, bool read_cache, uint64_t family) {
  if (slot >= static_cast<KvSlot>(slots_.size())) {
    slots_.resize(slot + 1);
    coordinator_.SetNumSlots(slot + 1);
  }
  FASTLLM_CHECK(table(slot, 0).empty(), "slot " + std::to_string(slot) + " is in use");
  Slot& s = slots_[slot];
  s.hashes.clear();
  s.keys = std::move(keys);
  s.read_cache = read_cache;
  s.indexed = hashing_.all || family != 0;
  // The last bytes tell families apart, whatever is in front of them.
  for (int32_t byte = 0; !hashing_.all && s.indexed && byte < 8; ++byte) {
    s.keys.cache_salt += static_cast<char>(family >> (8 * byte));
  }
  s.counted = false;
}

void KvManager::Reserve(KvSlot slot, int32_t num_tokens) {
  coordinator_.Reserve(slot, num_tokens);
  if (slots_[slot].indexed) slots_[slot].hashes.reserve(num_tokens / block_size_);
}

std::string_view KvManager::BlockKeys(const ExtraKeys& keys, int32_t block, std::string* scratch) const {
  if (block > 0 && !keys.vary()) return {};
  scratch->clear();
  AppendExtraKeys(keys, block, block_size_, scratch);
  return *scratch;
}

void KvManager::ExtendHashes(Slot* slot, std::span<const TokenId> tokens, int32_t num_full) {
  for (auto i = static_cast<int32_t>(slot->hashes.size()); i < num_full; ++i) {
    slot->hashes.push_back(HashBlock(i == 0 ? kChainSeed : slot->hashes.back(), BlockTokens(tokens, i),
                                     BlockKeys(slot->keys, i, &scratch_.keys), hashing_.spec));
  }
}

void KvManager::WalkIndex(std::span<const TokenId> tokens, const ExtraKeys& keys, std::span<const BlockHash> hashes,
                          int32_t most, std::string* scratch, std::vector<PrefixNode>* nodes) const {
  constexpr int32_t kAhead = 8;
  PrefixNode node = kRootNode;
  for (int32_t i = 0; i < most; ++i) {
    if (i + 2 * kAhead < most) index_->PrefetchBucket(hashes[i + 2 * kAhead]);
    if (i + kAhead < most) index_->PrefetchNode(hashes[i + kAhead]);
    node = index_->Find(node, hashes[i], BlockTokens(tokens, i), BlockKeys(keys, i, scratch));
    if (node == kNoNode) break;
    nodes->push_back(node);
  }
}

KvManager::Hit KvManager::CutToHit(std::vector<PrefixNode> nodes, int32_t num_tokens) const {
  Hit hit;
  hit.nodes = std::move(nodes);
  hit.whole = num_tokens > 1 && std::cmp_equal(num_tokens, hit.nodes.size() * block_size_) &&
              coordinator_.CanRepeatLast(hit.nodes);
  hit.num_tokens = num_tokens - 1;
  if (hit.whole) return hit;
  hit.nodes.resize(std::min<size_t>(hit.nodes.size(), (num_tokens - 1) / block_size_));
  hit.nodes.resize(coordinator_.HitLength(hit.nodes));
  hit.num_tokens = static_cast<int32_t>(hit.nodes.size()) * block_size_;
  return hit;
}

int32_t KvManager::FindPrefix(KvSlot slot, std::span<const TokenId> tokens) {
  std::vector<PrefixNode> nodes = std::move(hit_.nodes);
  nodes.clear();
  hit_ = {};
  hit_.slot = slot;
  Slot& s = slots_[slot];
  if (!s.indexed || !s.read_cache || tokens.empty()) return 0;
  const auto num_tokens = static_cast<int32_t>(tokens.size());
  ExtendHashes(&s, tokens, num_tokens / block_size_);
  WalkIndex(tokens, s.keys, s.hashes, num_tokens / block_size_, &scratch_.keys, &nodes);
  hit_ = CutToHit(std::move(nodes), num_tokens);
  hit_.slot = slot;
  return hit_.num_tokens;
}

std::vector<PrefixNode> KvManager::LookUp(std::span<const TokenId> tokens, const ExtraKeys& keys) const {
  std::vector<PrefixNode> nodes;
  std::string scratch;
  BlockHash hash = kChainSeed;
  PrefixNode node = kRootNode;
  for (int32_t i = 0; i < static_cast<int32_t>(tokens.size()) / block_size_; ++i) {
    const std::string_view extra = BlockKeys(keys, i, &scratch);
    hash = HashBlock(hash, BlockTokens(tokens, i), extra, hashing_.spec);
    node = index_->Find(node, hash, BlockTokens(tokens, i), extra);
    if (node == kNoNode) break;
    nodes.push_back(node);
  }
  return nodes;
}

int32_t KvManager::CountCachedTokens(std::span<const TokenId> tokens, const ExtraKeys& keys) const {
  if (!hashing_.all || tokens.empty()) return 0;
  return CutToHit(LookUp(tokens, keys), static_cast<int32_t>(tokens.size())).num_tokens;
}

bool KvManager::Admit(KvSlot slot, std::span<const TokenId> tokens, int32_t num_hit, int32_t num_new,
                      int32_t num_spare) {
  const auto num_tokens = static_cast<int32_t>(tokens.size());
  FASTLLM_CHECK(num_hit == 0 || (hit_.slot == slot && num_hit == hit_.num_tokens),
                "a hit of " + std::to_string(num_hit) + " tokens is not what FindPrefix() found for this slot");
  FASTLLM_CHECK(num_new > 0 && num_hit + num_new <= num_tokens, "new tokens out of range");
  FASTLLM_CHECK(table(slot, 0).empty(), "slot " + std::to_string(slot) + " is admitted already");
  EndExpiredPins();
  const auto nodes = std::span<const PrefixNode>(hit_.nodes).first(num_hit == 0 ? 0 : hit_.nodes.size());
  const auto num_covered = static_cast<int32_t>(nodes.size()) * block_size_;
  const int32_t end = num_hit + num_new;
  const int32_t in_hit = coordinator_.BlocksInHit(nodes, num_hit);
  const int32_t all_new =
      std::max(coordinator_.PeakBlocks(num_tokens) - in_hit, coordinator_.BlocksToGrowHit(num_covered, end));
  // Free blocks of the hit leave the free list too.
  const int32_t needed = all_new + coordinator_.FreeBlocksInHit(nodes, num_hit);
  counts_.shortfall = needed - (pool_.num_free_blocks() - counts_.reserved - num_spare);
  if (counts_.shortfall > 0) return false;

  Slot& s = slots_[slot];
  coordinator_.AttachHit(slot, nodes, num_hit);
  SetTail(&s, nodes.empty() ? kRootNode : nodes.back());
  s.num_indexed = static_cast<int32_t>(nodes.size());
  s.num_known = num_tokens;
  hit_.slot = -1;
  coordinator_.Grow(slot, end, nullptr);
  s.num_covered = coordinator_.num_covered(slot);
  UpdateReserved(slot, end);
  IndexFullBlocks(slot, tokens, end);
  CountQuery(&s, num_tokens, num_hit);
  return true;
}

void KvManager::CountQuery(Slot* slot, int64_t query, int64_t hit) {
  if (!hashing_.all || !slot->read_cache) return;
  ++(slot->counted ? stats_.preempted_requests : stats_.requests);
  (slot->counted ? stats_.preempted_query_tokens : stats_.query_tokens) += query;
  (slot->counted ? stats_.preempted_hit_tokens : stats_.hit_tokens) += hit;
  slot->counted = true;
}

bool KvManager::Extend(KvSlot slot, std::span<const TokenId> tokens, int32_t num_computed, int32_t num_new,
                       std::vector<std::vector<BlockId>>* new_blocks, int32_t num_in_flight) {
  const Slot& s = slots_[slot];
  const int32_t end = num_computed + num_new;
  if (end > s.num_covered) {
    if (!GrowTables(slot, num_computed, num_in_flight, end, new_blocks)) return false;
  } else if (s.reserved > 0) {
    UpdateReserved(slot, end);
  }
  IndexFullBlocks(slot, tokens, end);
  return true;
}

bool KvManager::GrowTables(KvSlot slot, int32_t num_computed, int32_t num_in_flight, int32_t end,
                           std::vector<std::vector<BlockId>>* new_blocks) {
  hit_.slot = -1;
  EndExpiredPins();
  coordinator_.FreeBehind(slot, num_computed - num_in_flight);
  const bool fits = coordinator_.BlocksToGrow(slot, end) <= pool_.num_free_blocks();
  if (fits) {
    coordinator_.Grow(slot, end, new_blocks);
    slots_[slot].num_covered = coordinator_.num_covered(slot);
  }
  UpdateReserved(slot, fits ? end : num_computed);
  return fits;
}

void KvManager::IndexFullBlocks(KvSlot slot, std::span<const TokenId> tokens, int32_t num_computed) {
  Slot& s = slots_[slot];
  const int32_t num_tokens = std::min(num_computed, static_cast<int32_t>(tokens.size()));
  if (!s.indexed || num_tokens - s.num_indexed * block_size_ < block_size_) return;
  int32_t num_full = num_tokens / block_size_;
  // Nodes are kept by the blocks in them and below them, so stop at the last one that gets a block.
  while (num_full > s.num_indexed && !coordinator_.BlocksEndingAt(slot, num_full - 1, &scratch_.blocks)) --num_full;
  if (num_full == s.num_indexed) return;
  hit_.slot = -1;
  ExtendHashes(&s, tokens, num_full);
  PrefixNode node = s.tail;
  for (int32_t i = s.num_indexed; i < num_full; ++i) {
    coordinator_.BlocksEndingAt(slot, i, &scratch_.blocks);
    node = index_->Insert(node, s.hashes[i], BlockTokens(tokens, i), BlockKeys(s.keys, i, &scratch_.keys),
                          scratch_.blocks);
  }
  SetTail(&s, node);
  counts_.indexed += num_full - s.num_indexed;
  s.num_indexed = num_full;
}

void KvManager::Uncompute(KvSlot slot, int32_t num_computed) {
  Slot& s = slots_[slot];
  hit_.slot = -1;
  for (; s.num_indexed > num_computed / block_size_; --s.num_indexed) {
    coordinator_.BlocksEndingAt(slot, s.num_indexed - 1, &scratch_.blocks);
    for (BlockId block : scratch_.blocks) {
      if (block != kNullBlock) index_->Erase(block);
    }
  }
}

void KvManager::SetTail(Slot* slot, PrefixNode node) {
  if (!slot->indexed) return;
  index_->Hold(node);
  index_->Release(std::exchange(slot->tail, node));
}

// While its known tokens are not all computed, a sequence keeps what it may still come to hold set aside.
void KvManager::UpdateReserved(KvSlot slot, int32_t end) {
  Slot& s = slots_[slot];
  if (s.reserved == 0 && end >= s.num_known) return;
  const int32_t rest = end >= s.num_known ? 0 : coordinator_.PeakBlocks(s.num_known) - coordinator_.num_held(slot);
  counts_.reserved += std::max(0, rest) - s.reserved;
  s.reserved = std::max(0, rest);
}

void KvManager::Free(KvSlot slot) {
  Slot& s = slots_[slot];
  coordinator_.Free(slot);
  SetTail(&s, kRootNode);
  s.num_indexed = 0;
  s.num_covered = 0;
  s.num_known = 0;
  counts_.reserved -= std::exchange(s.reserved, 0);
  hit_.slot = -1;
}

void KvManager::Close(KvSlot slot) {
  Free(slot);
  slots_[slot].hashes.clear();
  slots_[slot].keys = {};
}

void KvManager::EndExpiredPins() {
  if (!pins_.MayExpire()) return;
  std::vector<BlockId> ended;
  pins_.Expire(&ended);
  for (BlockId block : ended) pool_.SetLevel(block, 0);
}

Result<int32_t> KvManager::PinPrefix(std::span<const TokenId> tokens, const ExtraKeys& keys, int32_t priority,
                                     int64_t ttl_ms) {
  if (priority < 0 || priority > BlockPool::kMaxLevel) {
    return Status::InvalidArgument("the priority of a pin is " + std::to_string(priority) + ", it must be in [0, " +
                                   std::to_string(BlockPool::kMaxLevel) + "]");
  }
  if (ttl_ms < 0) {
    return Status::InvalidArgument("the ttl of a pin is " + std::to_string(ttl_ms) + " ms, at least 0 is needed");
  }
  if (!hashing_.all) return 0;
  EndExpiredPins();
  std::vector<PrefixNode> nodes = LookUp(tokens, keys);
  nodes.resize(coordinator_.HitLength(nodes));
  // Backwards, so that the tail of the prefix is taken before its head.
  for (PrefixNode node : std::views::reverse(nodes)) {
    for (int32_t group = 0; group < num_groups(); ++group) {
      const BlockId block = index_->AnyBlock(node, group);
      if (block == kNullBlock) continue;
      pool_.SetLevel(block, priority);
      pins_.Set(block, priority > 0 ? ttl_ms : 0);
    }
  }
  return static_cast<int32_t>(nodes.size()) * block_size_;
}

std::vector<std::vector<BlockId>> KvManager::Tables(KvSlot slot) const {
  std::vector<std::vector<BlockId>> tables;
  tables.reserve(num_groups());
  for (int32_t group = 0; group < num_groups(); ++group) tables.push_back(table(slot, group));
  return tables;
}

bool KvManager::ResetPrefixCache() {
  hit_.slot = -1;
  if (!pool_.ResetPrefixCache()) return false;
  pins_.Clear();
  return true;
}

}  // namespace fastllm
