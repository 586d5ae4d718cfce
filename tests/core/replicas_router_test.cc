#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "core/replicas/prefix_router.h"

namespace fastllm {
namespace {

std::vector<int32_t> Tokens(int32_t first, int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

RouterOptions Options(int32_t replicas = 2) {
  RouterOptions options;
  options.num_replicas = replicas;
  options.block_size = 4;
  options.blocks = 1000;
  return options;
}

// Loads that are all equal.
std::vector<ReplicaLoad> Even(int32_t replicas, int64_t live = 10) {
  return std::vector<ReplicaLoad>(static_cast<size_t>(replicas), ReplicaLoad{true, live});
}

TEST(RecentMap, ForgetsTheLeastRecentlyUsed) {
  RecentMap<int> map(2);
  map.Put(1, 10);
  map.Put(2, 20);
  map.Put(1, 11);
  map.Put(3, 30);
  EXPECT_EQ(*map.Find(1), 11);
  EXPECT_EQ(map.Find(2), nullptr);
  EXPECT_EQ(*map.Find(3), 30);
  RecentMap<int> none(0);
  none.Put(1, 1);
  EXPECT_EQ(none.Find(1), nullptr);
}

TEST(PrefixRouter, TheLongestPrefixWins) {
  PrefixRouter router(Options(3));
  const std::vector<int32_t> tokens = Tokens(0, 100);
  const auto part = [&tokens](size_t count) { return RouteQuery{std::span(tokens).first(count)}; };
  router.Sent(part(21), 1);  // five blocks
  router.Sent(part(41), 2);  // ten
  const RouteChoice choice = router.Choose(part(100), Even(3));
  EXPECT_EQ(choice.replica, 2);
  EXPECT_EQ(choice.reason, RouteReason::kPrefix);
  EXPECT_EQ(choice.expected_hit_tokens, 40);
}

TEST(PrefixRouter, TheLastTokenIsComputedInAnyCase) {
  PrefixRouter router(Options());
  const std::vector<int32_t> tokens = Tokens(0, 8);
  router.Sent({tokens}, 1);
  EXPECT_EQ(router.Choose({tokens}, Even(2)).expected_hit_tokens, 4);
}

TEST(PrefixRouter, UnequalKeysShareNothing) {
  PrefixRouter router(Options());
  const std::vector<int32_t> tokens = Tokens(0, 20);
  ExtraKeys salted, other;
  salted.cache_salt = std::string(1, 'a');
  other.cache_salt = std::string(1, 'b');
  router.Sent({tokens, &salted}, 1);
  EXPECT_EQ(router.Choose({tokens, &salted}, Even(2)).reason, RouteReason::kPrefix);
  EXPECT_EQ(router.Choose({tokens, &other}, Even(2)).reason, RouteReason::kLoad);
  EXPECT_EQ(router.Choose({tokens}, Even(2)).reason, RouteReason::kLoad);
}

TEST(PrefixRouter, ALoadPastItsBoundLosesThePrefix) {
  PrefixRouter router(Options());
  const std::vector<int32_t> tokens = Tokens(0, 20);
  router.Sent({tokens}, 1);
  // The mean with this request is 20.5, the bound 25.6.
  EXPECT_EQ(router.Choose({tokens}, std::vector<ReplicaLoad>{{true, 16}, {true, 24}}).replica, 1);
  const RouteChoice past = router.Choose({tokens}, std::vector<ReplicaLoad>{{true, 14}, {true, 26}});
  EXPECT_EQ(past.replica, 0);
  EXPECT_EQ(past.reason, RouteReason::kLoad);
  // Two above the mean are nobody's concern.
  EXPECT_EQ(router.Choose({tokens}, std::vector<ReplicaLoad>{{true, 0}, {true, 2}}).replica, 1);
  EXPECT_EQ(router.Choose({tokens}, std::vector<ReplicaLoad>{{true, 0}, {true, 4}}).replica, 0);
}

TEST(PrefixRouter, WithoutAPrefixTheLeastLoadAndThenInTurn) {
  PrefixRouter router(Options(3));
  EXPECT_EQ(router.Choose({}, std::vector<ReplicaLoad>{{true, 5}, {true, 3}, {true, 4}}).replica, 1);
  std::vector<int32_t> taken;
  for (int i = 0; i < 6; ++i) taken.push_back(router.Choose({}, Even(3, 0)).replica);
  std::ranges::sort(taken);
  EXPECT_EQ(taken, (std::vector<int32_t>{0, 0, 1, 1, 2, 2}));
}

TEST(PrefixRouter, ClosedReplicasGetNothing) {
  PrefixRouter router(Options());
  const std::vector<int32_t> tokens = Tokens(0, 20);
  router.Sent({tokens, nullptr, "session"}, 1);
  const std::vector<ReplicaLoad> one_closed{{true, 100}, {false, 0}};
  EXPECT_EQ(router.Choose({tokens, nullptr, "session"}, one_closed).replica, 0);
  EXPECT_EQ(router.Choose({tokens}, std::vector<ReplicaLoad>{{false, 0}, {false, 0}}).replica, -1);
}

TEST(PrefixRouter, ASessionGoesBeforeAPrefix) {
  PrefixRouter router(Options());
  const std::vector<int32_t> tokens = Tokens(0, 20), others = Tokens(500, 20);
  router.Sent({others, nullptr, "mine"}, 0);
  router.Sent({tokens}, 1);
  const RouteChoice choice = router.Choose({tokens, nullptr, "mine"}, Even(2));
  EXPECT_EQ(choice.replica, 0);
  EXPECT_EQ(choice.reason, RouteReason::kSession);
  EXPECT_EQ(router.Choose({tokens, nullptr, "mine"}, std::vector<ReplicaLoad>{{true, 40}, {true, 0}}).replica, 1);
}

TEST(PrefixRouter, ForgottenCachesHoldNothing) {
  PrefixRouter router(Options());
  const std::vector<int32_t> tokens = Tokens(0, 20);
  router.Sent({tokens}, 1);
  router.Forget(1);
  EXPECT_EQ(router.Choose({tokens}, Even(2)).reason, RouteReason::kLoad);
}

TEST(PrefixRouter, PrefixesAreGivenUpAsByTheCaches) {
  RouterOptions options = Options();
  options.blocks = 6;
  PrefixRouter router(options);
  const std::vector<int32_t> first = Tokens(0, 17), second = Tokens(500, 17);  // four blocks each
  router.Sent({first}, 0);
  router.Sent({second}, 0);
  EXPECT_EQ(router.Choose({first}, Even(2)).expected_hit_tokens, 8);  // its end is gone
  EXPECT_EQ(router.Choose({second}, Even(2)).expected_hit_tokens, 16);
}

TEST(PrefixRouter, InTurnWhenAskedFor) {
  RouterOptions options = Options();
  options.by_prefix = false;
  PrefixRouter router(options);
  const std::vector<int32_t> tokens = Tokens(0, 20);
  std::vector<int32_t> taken;
  for (int i = 0; i < 4; ++i) {
    const RouteChoice choice = router.Choose({tokens}, Even(2));
    taken.push_back(choice.replica);
    router.Sent({tokens}, choice.replica);
  }
  EXPECT_EQ(taken, (std::vector<int32_t>{0, 1, 0, 1}));
}

// 8 system prompts, 64 clients that always have one request running: the same prompts stay together, and no replica has
// more than its share for long.
TEST(PrefixRouter, ManyClientsOfFewPrompts) {
  PrefixRouter router(Options());
  std::vector<ReplicaLoad> loads(2);
  std::vector<int32_t> running;
  std::vector<int64_t> sent(2);
  int64_t hits = 0, total = 0;
  for (int n = 0; n < 2000; ++n) {
    const int prompt = (n * 7919) % 8;
    std::vector<int32_t> tokens = Tokens(prompt * 1000, 64);
    tokens.push_back(100000 + n);
    const RouteChoice choice = router.Choose({tokens}, loads);
    hits += choice.expected_hit_tokens;
    total += 64;
    router.Sent({tokens}, choice.replica);
    ++sent[static_cast<size_t>(choice.replica)];
    ++loads[static_cast<size_t>(choice.replica)].live;
    running.push_back(choice.replica);
    if (running.size() < 64) continue;
    --loads[static_cast<size_t>(running.front())].live;
    running.erase(running.begin());
  }
  EXPECT_GT(static_cast<double>(hits) / static_cast<double>(total), 0.99);
  EXPECT_LT(static_cast<double>(std::max(sent[0], sent[1])) / 1000.0, 1.3);
}

}  // namespace
}  // namespace fastllm
