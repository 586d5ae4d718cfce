#include "kv_model.h"

#include <algorithm>
#include <utility>

namespace fastllm {

int KvModel::Content(const std::string& salt, const std::vector<int>& before, TokenId token) {
  const std::pair<std::string, std::pair<int, TokenId>> key = {before.empty() ? salt : "",
                                                               {before.empty() ? -1 : before.back(), token}};
  return trie_.emplace(key, static_cast<int>(trie_.size())).first->second;
}

bool KvModel::Needed(const KvGroupSpec& g, int entry, int settled) const {
  const int end = (entry + 1) * Size(g);  // first position after the entry
  if (g.kind == KvGroupKind::kFull) return true;
  if (g.kind == KvGroupKind::kSlidingWindow) return end - 1 >= settled - g.window + 1;
  return settled <= 0 || end - 1 >= settled - 1;
}

bool KvModel::Stored(const KvGroupSpec& g, int entry, int end) const {
  if (g.kind != KvGroupKind::kState) return true;
  const bool last = entry == (end - 1) / Size(g);
  const bool last_boundary = (entry + 1) * Size(g) <= end && (entry + 2) * Size(g) > end;
  return last || last_boundary;
}

int KvModel::Peak(int num_tokens) const {
  int sum = 0;
  for (const KvGroupSpec& g : config_.groups) {
    const int all = Ceil(num_tokens, Size(g));
    int most = g.kind == KvGroupKind::kState ? 5 : all;
    if (g.kind == KvGroupKind::kSlidingWindow && config_.max_step_tokens > 0) {
      most = Ceil(g.window - 1 + config_.max_step_tokens, Size(g)) + 1;
    }
    sum += std::min(all, most);
  }
  return sum;
}

int KvModel::Hit(const std::vector<int>& contents, int most) const {
  for (int length = most / alignment_ * alignment_; length > 0; length -= alignment_) {
    bool usable = true;
    for (int g = 0; g < static_cast<int>(config_.groups.size()) && usable; ++g) {
      const int size = Size(config_.groups[g]);
      for (int e = 0; e < length / size && usable; ++e) {
        usable = !Needed(config_.groups[g], e, length) || AnyBlock(g, contents[(e + 1) * size - 1]) != kNullBlock;
      }
    }
    if (usable) return length;
  }
  return 0;
}

bool KvModel::Whole(const std::vector<int>& contents) const {
  const auto count = static_cast<int>(contents.size());
  if (count == 0 || count % alignment_ != 0) return false;
  for (int g = 0; g < static_cast<int>(config_.groups.size()); ++g) {
    const KvGroupSpec& spec = config_.groups[g];
    if (spec.kind == KvGroupKind::kState) return false;  // its start state is another one
    for (int e = 0; e < count / Size(spec); ++e) {
      if (!Needed(spec, e, count - 1)) continue;
      if (AnyBlock(g, contents[(e + 1) * Size(spec) - 1]) == kNullBlock) return false;
    }
  }
  return true;
}

int KvModel::HitOf(const std::vector<int>& contents) const {
  const auto count = static_cast<int>(contents.size());
  return Whole(contents) ? count - 1 : Hit(contents, count - 1);
}

BlockId KvModel::AnyBlock(int group, int content) const {
  const auto found = blocks_of_.find({group, content});
  return found == blocks_of_.end() || found->second.empty() ? kNullBlock : found->second.back();
}

bool KvModel::Admit(ModelSlot* slot, int hit, int num_new) {
  Expire();
  std::vector<std::vector<BlockId>> tables(config_.groups.size());
  int in_hit = 0, free_in_hit = 0, grown = 0;
  const int end = hit + num_new;
  for (size_t g = 0; g < tables.size(); ++g) {
    const KvGroupSpec& spec = config_.groups[g];
    for (int e = 0; e < Ceil(hit, Size(spec)); ++e) {
      const bool needed = Needed(spec, e, hit);
      tables[g].push_back(needed ? AnyBlock(g, slot->contents[(e + 1) * Size(spec) - 1]) : kNullBlock);
      if (!needed) continue;
      ++in_hit;
      if (ref_[tables[g].back()] == 0) ++free_in_hit;
    }
    grown += Missing(spec, tables[g].size(), end);
  }
  const int num_tokens = static_cast<int>(slot->tokens.size());
  if (std::max(Peak(num_tokens) - in_hit, grown) + free_in_hit > num_free() - reserved_) return false;
  for (const auto& table : tables) {
    for (BlockId b : table) Touch(b);
  }
  slot->tables = std::move(tables);
  slot->known = num_tokens;
  Grow(slot, end);
  Finish(slot, hit, end);
  return true;
}

bool KvModel::Extend(ModelSlot* slot, int num_new, int num_in_flight) {
  const int begin = slot->computed, end = begin + num_new;
  bool grows = false;
  for (size_t g = 0; g < slot->tables.size(); ++g) {
    grows |= static_cast<int>(slot->tables[g].size()) * Size(config_.groups[g]) < end;
  }
  if (grows) {
    Expire();
    int needed = 0;
    for (size_t g = 0; g < slot->tables.size(); ++g) {
      FreeBehind(config_.groups[g], &slot->tables[g], begin - num_in_flight);
      needed += Missing(config_.groups[g], slot->tables[g].size(), end);
    }
    if (needed > num_free()) {
      SetReserved(slot, begin);
      return false;
    }
    Grow(slot, end);
  }
  Finish(slot, begin, end);
  return true;
}

void KvModel::Free(ModelSlot* slot) {
  for (auto& table : slot->tables) FreeBlocks(table);
  slot->tables.clear();
  reserved_ -= std::exchange(slot->reserved, 0);
  slot->computed = 0;
}

int KvModel::Pin(const std::vector<int>& contents, int level, int64_t ttl_ms) {
  Expire();
  const int length = Hit(contents, static_cast<int>(contents.size()));
  for (int end = length; end > 0; end -= config_.block_size) {
    for (size_t g = 0; g < config_.groups.size(); ++g) {
      const BlockId b = AnyBlock(static_cast<int>(g), contents[end - 1]);
      if (b == kNullBlock) continue;
      SetLevel(b, level);
      deadline_[b] = level > 0 && ttl_ms > 0 ? now_ms + ttl_ms : -1;
    }
  }
  return length;
}

bool KvModel::Reset() {
  if (num_free() != config_.num_blocks - 1) return false;
  for (int level = 63; level > 0; --level) {
    while (!free_[level].empty()) SetLevel(free_[level].front(), 0);
  }
  std::ranges::fill(cached_, std::pair{-1, -1});
  std::ranges::fill(deadline_, -1);
  blocks_of_.clear();
  return true;
}

std::vector<BlockId> KvModel::FreeList() const {
  std::vector<BlockId> all;
  for (const auto& level : free_) all.insert(all.end(), level.begin(), level.end());
  return all;
}

int KvModel::num_free() const {
  size_t count = 0;
  for (const auto& level : free_) count += level.size();
  return static_cast<int>(count);
}

int KvModel::num_cached() const {
  return static_cast<int>(std::ranges::count_if(cached_, [](const auto& c) { return c.first >= 0; }));
}

int KvModel::Missing(const KvGroupSpec& g, size_t entries, int end) const {
  int count = 0;
  for (int e = static_cast<int>(entries); e < Ceil(end, Size(g)); ++e) count += Stored(g, e, end);
  return count;
}

void KvModel::Grow(ModelSlot* slot, int end) {
  for (size_t g = 0; g < slot->tables.size(); ++g) {
    auto& table = slot->tables[g];
    for (auto e = static_cast<int>(table.size()); e < Ceil(end, Size(config_.groups[g])); ++e) {
      table.push_back(Stored(config_.groups[g], e, end) ? Take() : kNullBlock);
    }
  }
}

void KvModel::Finish(ModelSlot* slot, int begin, int end) {
  slot->computed = end;
  SetReserved(slot, end);
  (void)begin;
  const int full = std::min(end, static_cast<int>(slot->tokens.size()));
  // Prefixes are entered in order, all groups of one before the next.
  for (int at = config_.block_size; at <= full; at += config_.block_size) {
    for (int g = 0; g < static_cast<int>(slot->tables.size()); ++g) {
      const int size = Size(config_.groups[g]);
      if (at % size != 0) continue;
      const BlockId b = slot->tables[g][at / size - 1];
      if (b == kNullBlock || cached_[b].first >= 0) continue;
      cached_[b] = {g, slot->contents[at - 1]};
      blocks_of_[cached_[b]].push_back(b);
    }
  }
}

void KvModel::SetReserved(ModelSlot* slot, int end) {
  int held = 0;
  for (const auto& table : slot->tables) {
    held += static_cast<int>(std::ranges::count_if(table, [](BlockId b) { return b != kNullBlock; }));
  }
  const int rest = end < slot->known ? std::max(0, Peak(slot->known) - held) : 0;
  reserved_ += rest - std::exchange(slot->reserved, rest);
}

BlockId KvModel::Take() {
  for (auto& level : free_) {
    if (level.empty()) continue;
    const BlockId b = level.front();
    level.pop_front();
    ref_[b] = 1;
    level_[b] = 0;
    if (cached_[b].first >= 0) std::erase(blocks_of_[cached_[b]], b);
    cached_[b] = {-1, -1};
    return b;
  }
  return -1;
}

void KvModel::Touch(BlockId b) {
  if (b != kNullBlock && ref_[b]++ == 0) std::erase(free_[level_[b]], b);
}

void KvModel::FreeBehind(const KvGroupSpec& g, std::vector<BlockId>* table, int settled) {
  std::vector<BlockId> behind;
  for (size_t e = 0; e < table->size() && !Needed(g, static_cast<int>(e), settled); ++e) {
    behind.push_back(std::exchange((*table)[e], kNullBlock));
  }
  FreeBlocks(behind);
}

void KvModel::FreeBlocks(const std::vector<BlockId>& blocks) {
  for (auto b = blocks.rbegin(); b != blocks.rend(); ++b) {
    if (*b == kNullBlock || --ref_[*b] > 0) continue;
    if (cached_[*b].first >= 0) {
      free_[level_[*b]].push_back(*b);
    } else {
      free_[0].push_front(*b);
    }
  }
}

void KvModel::SetLevel(BlockId b, int level) {
  if (level_[b] == level) return;
  if (ref_[b] == 0) {
    std::erase(free_[level_[b]], b);
    free_[level].push_back(b);
  }
  level_[b] = level;
}

void KvModel::Expire() {
  std::vector<std::pair<int64_t, BlockId>> ended;
  for (BlockId b = 1; b < config_.num_blocks; ++b) {
    if (deadline_[b] >= 0 && deadline_[b] <= now_ms) ended.emplace_back(deadline_[b], b);
  }
  std::ranges::sort(ended);
  for (const auto& [at, b] : ended) {
    deadline_[b] = -1;
    SetLevel(b, 0);
  }
}

}  // namespace fastllm
