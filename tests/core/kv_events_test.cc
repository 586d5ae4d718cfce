#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "core/base/check.h"
#include "core/kv/kv_events.h"
#include "core/kv/kv_manager.h"

namespace fastllm {
namespace {

using Tokens = std::vector<TokenId>;

Tokens Range(int32_t count, TokenId first = 100) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

KvConfig Config(int32_t num_blocks, std::vector<KvGroupSpec> groups = {KvGroupSpec{}}) {
  KvConfig config;
  config.num_blocks = num_blocks;
  config.block_size = 2;
  config.groups = std::move(groups);
  config.kv_event_capacity = 100;
  config.prefix_hash_seed = 5;
  return config;
}

void AdmitAll(KvManager* kv, KvSlot slot, const Tokens& tokens, bool read_cache = true) {
  kv->Open(slot, ExtraKeys{}, read_cache);
  const int32_t hit = kv->FindPrefix(slot, tokens);
  EXPECT_TRUE(kv->Admit(slot, tokens, hit, static_cast<int32_t>(tokens.size()) - hit));
}

std::vector<KvEvent> Drain(KvManager* kv) {
  std::vector<KvEvent> events;
  kv->events()->Drain(1000, &events);
  return events;
}

// The hash of a chain of blocks of two tokens.
uint64_t Hash(const Tokens& tokens) {
  BlockHash hash = kChainSeed;
  for (size_t i = 0; i < tokens.size(); i += 2) {
    hash = HashBlock(hash, std::span(tokens).subspan(i, 2), "", {PrefixHashAlgo::kXxHash, 5});
  }
  return hash.lo;
}

TEST(KvEvents, OffByDefault) {
  KvConfig config = Config(10);
  config.kv_event_capacity = 0;
  EXPECT_EQ(KvManager(config).events(), nullptr);
  config = Config(10);
  config.enable_prefix_caching = false;
  EXPECT_EQ(KvManager(config).events(), nullptr);
}

TEST(KvEvents, StoredNamesBlockParentAndTokens) {
  KvManager kv(Config(10));
  AdmitAll(&kv, 0, Range(5));
  const std::vector<KvEvent> events = Drain(&kv);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, KvEventKind::kStored);
  EXPECT_EQ(events[0].sequence, 0u);
  EXPECT_EQ(events[0].group, 0);
  EXPECT_EQ(events[0].block_size(), 2);
  EXPECT_EQ(events[0].tokens, (Tokens{100, 101}));
  EXPECT_EQ(events[0].hash, Hash(Range(2)));
  EXPECT_FALSE(events[0].has_parent);
  EXPECT_EQ(events[1].sequence, 1u);
  EXPECT_EQ(events[1].tokens, (Tokens{102, 103}));
  EXPECT_EQ(events[1].hash, Hash(Range(4)));
  EXPECT_TRUE(events[1].has_parent);
  EXPECT_EQ(events[1].parent_hash, events[0].hash);
  EXPECT_TRUE(Drain(&kv).empty());
}

TEST(KvEvents, RemovedWhenTheLastCopyLeaves) {
  KvManager kv(Config(7));  // 6 blocks
  AdmitAll(&kv, 0, Range(4));
  kv.Close(0);
  AdmitAll(&kv, 0, Range(4));  // finds all
  kv.Close(0);
  AdmitAll(&kv, 0, Range(4), /*read_cache=*/false);  // two copies
  EXPECT_EQ(kv.index()->num_cached_blocks(), 4);
  kv.Close(0);
  EXPECT_EQ(Drain(&kv).size(), 2u);  // second copies are no news
  AdmitAll(&kv, 1, Range(9, 500));   // 5 blocks: evicts both copies of the tail and one of the head
  const std::vector<KvEvent> events = Drain(&kv);
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0].kind, KvEventKind::kRemoved);
  EXPECT_EQ(events[0].hash, Hash(Range(4)));
  EXPECT_EQ(events[0].group, 0);
  EXPECT_EQ(events[0].sequence, 2u);
  for (size_t i = 1; i < 5; ++i) EXPECT_EQ(events[i].kind, KvEventKind::kStored);
  kv.Close(1);
  EXPECT_TRUE(kv.ResetPrefixCache());
  const std::vector<KvEvent> reset = Drain(&kv);
  ASSERT_EQ(reset.size(), 1u);
  EXPECT_EQ(reset[0].kind, KvEventKind::kCleared);
  EXPECT_EQ(reset[0].sequence, 7u);
  EXPECT_EQ(kv.events()->next_sequence(), 8u);
}

TEST(KvEvents, AGroupOfLargerBlocksReportsItsOwn) {
  KvManager kv(Config(20, {KvGroupSpec{}, KvGroupSpec{KvGroupKind::kFull, 0, 4}}));
  AdmitAll(&kv, 0, Range(9));
  std::vector<KvEvent> wide;
  for (KvEvent& event : Drain(&kv)) {
    if (event.group == 1) wide.push_back(event);
  }
  ASSERT_EQ(wide.size(), 2u);
  EXPECT_EQ(wide[0].tokens, Range(4));
  EXPECT_EQ(wide[0].hash, Hash(Range(4)));
  EXPECT_FALSE(wide[0].has_parent);
  EXPECT_EQ(wide[1].tokens, Range(4, 104));
  EXPECT_EQ(wide[1].hash, Hash(Range(8)));
  EXPECT_EQ(wide[1].parent_hash, wide[0].hash);
}

TEST(KvEventRing, OverflowIsAGapInTheNumbers) {
  KvEventRing ring(3, 2, {1});
  for (uint64_t i = 0; i < 5; ++i) ring.Removed(0, i);
  std::vector<KvEvent> events;
  EXPECT_EQ(ring.Drain(2, &events), 2u);
  ring.Removed(0, 5);
  const std::span<TokenId> tokens = ring.BeginStored(0, 6, true, 9);
  ASSERT_EQ(tokens.size(), 2u);
  tokens[0] = 1;
  tokens[1] = 2;
  ring.Publish();
  EXPECT_TRUE(ring.BeginStored(0, 7, false, 0).empty());  // full again
  EXPECT_EQ(ring.Drain(100, &events), 3u);
  ASSERT_EQ(events.size(), 5u);
  std::vector<uint64_t> numbers;
  for (const KvEvent& event : events) numbers.push_back(event.sequence);
  EXPECT_EQ(numbers, (std::vector<uint64_t>{0, 1, 2, 5, 6}));
  EXPECT_EQ(events[4].tokens, (Tokens{1, 2}));
  EXPECT_EQ(events[4].parent_hash, 9u);
  EXPECT_EQ(ring.next_sequence(), 8u);  // an empty ring behind it: number 7 was lost
  EXPECT_EQ(ring.Drain(100, &events), 0u);
}

TEST(KvEventRing, RefusesSizesWithoutMeaning) {
  EXPECT_THROW(KvEventRing(0, 2, {1}), InternalError);
  EXPECT_THROW(KvEventRing(4, 2, {}), InternalError);
}

TEST(KvEventRing, AReaderThreadSeesWholeEventsInOrder) {
  constexpr uint64_t kEvents = 200000;
  KvEventRing ring(64, 4, {1});
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (uint64_t i = 0; i < kEvents; ++i) {
      const std::span<TokenId> tokens = ring.BeginStored(0, i, true, ~i);
      for (TokenId& token : tokens) token = static_cast<TokenId>(i);
      if (!tokens.empty()) ring.Publish();
    }
    done.store(true, std::memory_order_release);
  });
  std::vector<KvEvent> events;
  uint64_t seen = 0, next = 0;
  bool whole = true;
  for (bool last = false; !last;) {
    last = done.load(std::memory_order_acquire);
    events.clear();
    ring.Drain(100, &events);
    last = last && events.empty();
    for (const KvEvent& event : events) {
      whole &= event.sequence >= next && event.hash == event.sequence && event.parent_hash == ~event.sequence;
      for (TokenId token : event.tokens) whole &= token == static_cast<TokenId>(event.sequence);
      next = event.sequence + 1;
      ++seen;
    }
  }
  writer.join();
  EXPECT_TRUE(whole);
  EXPECT_GE(seen, 64u);
  EXPECT_LE(next, kEvents);
  EXPECT_EQ(ring.next_sequence(), kEvents);
}

// A reader that applies every event knows what the cache can serve.
TEST(KvEvents, AReplayOfTheEventsIsTheIndex) {
  KvManager kv(Config(12, {KvGroupSpec{}, KvGroupSpec{KvGroupKind::kSlidingWindow, 3}}));
  std::set<std::pair<int32_t, uint64_t>> known;
  uint64_t next = 0;
  for (int round = 0; round < 200; ++round) {
    AdmitAll(&kv, 0, Range(4 + round % 6, 100 * (round * 7 % 11)));
    kv.Close(0);
    if (round % 50 == 49) kv.ResetPrefixCache();
    for (const KvEvent& event : Drain(&kv)) {
      EXPECT_EQ(event.sequence, next++);
      if (event.kind == KvEventKind::kStored) {
        EXPECT_TRUE(known.insert({event.group, event.hash}).second);
      } else if (event.kind == KvEventKind::kRemoved) {
        EXPECT_EQ(known.erase({event.group, event.hash}), 1u);
      } else {
        known.clear();
      }
    }
    std::set<std::pair<int32_t, uint64_t>> real;
    for (int32_t first = 0; first < 11; ++first) {
      const Tokens tokens = Range(8, 100 * first);
      PrefixNode node = kRootNode;
      for (int32_t i = 0; i < 4 && node != kNoNode; ++i) {
        const BlockHash hash{Hash(Range(2 * i + 2, 100 * first)), 0, {}};
        node = kv.index()->Find(node, hash, std::span(tokens).subspan(2 * i, 2), "");
        for (int32_t group = 0; group < 2 && node != kNoNode; ++group) {
          if (kv.index()->AnyBlock(node, group) != kNullBlock) real.insert({group, hash.lo});
        }
      }
    }
    ASSERT_EQ(known, real) << "round " << round;
  }
}

}  // namespace
}  // namespace fastllm
