#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "core/engine/engine_core.h"
#include "engine_fake_executor.h"
#include "engine_fixture.h"

namespace fastllm {
namespace {

TokenId Cycle(std::span<const TokenId> tokens, size_t) { return (tokens.back() + 1) % 8; }

KvConfig KvWithEvents(int32_t capacity) {
  KvConfig kv = Kv();
  kv.kv_event_capacity = capacity;
  return kv;
}

void RunOne(EngineCore* engine, RequestId id, Ids prompt) {
  ASSERT_TRUE(engine->Add(MakeRequest(id, std::move(prompt), 1)).ok());
  Collect(engine, 1);
}

TEST(EnginePrefix, CountsWhatARequestWouldFind) {
  EngineCore engine(Sched(), Kv(), std::make_unique<FakeExecutor>(Cycle), Letters());
  RunOne(&engine, 1, {0, 1, 2, 3, 4, 5, 6, 7, 0});
  EXPECT_EQ(engine.CountCachedTokens({0, 1, 2, 3, 4, 5, 6, 7, 0}, {}).value(), 8);
  EXPECT_EQ(engine.CountCachedTokens({0, 1, 2, 3, 4, 5, 6, 7}, {}).value(), 7);  // one token is left to compute
  EXPECT_EQ(engine.CountCachedTokens({0, 1, 2, 3, 9, 9, 9, 9, 9}, {}).value(), 4);
  ExtraKeys salted;
  salted.cache_salt = "s";
  EXPECT_EQ(engine.CountCachedTokens({0, 1, 2, 3, 4}, salted).value(), 0);
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.prefix_query_tokens, 9);  // a question is no query
  ASSERT_TRUE(engine.ResetPrefixCache().ok());
  EXPECT_EQ(engine.CountCachedTokens({0, 1, 2, 3, 4}, {}).value(), 0);
  engine.Shutdown();
  EXPECT_EQ(engine.CountCachedTokens({0, 1, 2, 3, 4}, {}).status().code(), StatusCode::kUnavailable);
}

TEST(EnginePrefix, APinOutlivesALoadThatTakesTheWholePool) {
  EngineCore engine(Sched(), Kv(9), std::make_unique<FakeExecutor>(Cycle), Letters());
  RunOne(&engine, 1, Ids(9, 3));
  EXPECT_EQ(engine.PinPrefix(Ids(9, 3), {}, 1, 0).value(), 8);
  EXPECT_EQ(engine.PinPrefix(Ids(9, 2), {}, 1, 0).value(), 0);
  EXPECT_EQ(engine.PinPrefix({1}, {}, 1, -1).status().code(), StatusCode::kInvalidArgument);
  for (RequestId id = 2; id < 8; ++id) RunOne(&engine, id, Ids(17, static_cast<TokenId>(id)));
  EXPECT_EQ(engine.CountCachedTokens(Ids(9, 3), {}).value(), 8);
  EXPECT_EQ(engine.PinPrefix(Ids(9, 3), {}, 0, 0).value(), 8);
  for (RequestId id = 8; id < 14; ++id) RunOne(&engine, id, Ids(17, static_cast<TokenId>(id % 8)));
  EXPECT_EQ(engine.CountCachedTokens(Ids(9, 3), {}).value(), 0);
}

TEST(EnginePrefix, EventsTellWhatIsCached) {
  EngineCore engine(Sched(), KvWithEvents(100), std::make_unique<FakeExecutor>(Cycle), Letters());
  RunOne(&engine, 1, {0, 1, 2, 3, 4, 5, 6, 7, 0});
  const KvEventBatch first = engine.DrainKvEvents(1);
  ASSERT_EQ(first.events.size(), 1u);
  EXPECT_EQ(first.events[0].tokens, (Ids{0, 1, 2, 3}));
  EXPECT_FALSE(first.events[0].has_parent);
  ASSERT_TRUE(engine.ResetPrefixCache().ok());
  const KvEventBatch rest = engine.DrainKvEvents(100);
  ASSERT_EQ(rest.events.size(), 2u);
  EXPECT_EQ(rest.events[0].sequence, 1u);
  EXPECT_EQ(rest.events[0].kind, KvEventKind::kStored);
  EXPECT_EQ(rest.events[0].tokens, (Ids{4, 5, 6, 7}));
  EXPECT_EQ(rest.events[0].parent_hash, first.events[0].hash);
  EXPECT_EQ(rest.events[1].kind, KvEventKind::kCleared);
  EXPECT_EQ(rest.num_lost, 0u);
  EXPECT_TRUE(engine.DrainKvEvents(100).events.empty());
}

TEST(EnginePrefix, EventsThatNobodyTakesAreCountedAsLost) {
  EngineCore engine(Sched(), KvWithEvents(3), std::make_unique<FakeExecutor>(Cycle), Letters());
  RunOne(&engine, 1, Ids(41, 3));  // ten blocks
  const KvEventBatch batch = engine.DrainKvEvents(100);
  EXPECT_EQ(batch.events.size(), 3u);
  EXPECT_EQ(batch.num_lost, 7u);
  RunOne(&engine, 2, Ids(5, 4));
  EXPECT_EQ(engine.DrainKvEvents(100).events.at(0).sequence, 10u);
}

TEST(EnginePrefix, WithoutABufferThereAreNoEvents) {
  EngineCore engine(Sched(), Kv(), std::make_unique<FakeExecutor>(Cycle), Letters());
  RunOne(&engine, 1, Ids(9, 3));
  EXPECT_TRUE(engine.DrainKvEvents(100).events.empty());
}

}  // namespace
}  // namespace fastllm
