// Models with sliding-window and recurrent layers under the scheduler, which does not know the kinds of groups. The
// executor double knows tables from the plans alone and checks all that it reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "core/sched/scheduler.h"

namespace fastllm {
namespace {

// Keeps, for each block and offset, the hash of the token prefix whose KV (or state, at offset 0) is there.
class HybridExecutor {
 public:
  explicit HybridExecutor(const KvConfig& config) : config_(config), memory_(config.num_blocks) {
    for (auto& block : memory_) block.resize(64, 0);
  }

  StepResult Run(const StepPlan& plan) {
    for (RequestId id : plan.removed) known_.erase(id);
    for (const NewSequence& s : plan.added) {
      known_[s.id] = {s.tokens, s.block_ids, s.num_computed_tokens, s.num_computed_tokens + (s.repeats_last ? 1 : 0)};
    }
    for (const SequenceDiff& d : plan.diffs) {
      Known& k = known_.at(d.id);
      EXPECT_EQ(k.computed, d.num_computed_tokens);
      for (size_t g = 0; g < d.new_block_ids.size(); ++g) {
        k.tables[g].insert(k.tables[g].end(), d.new_block_ids[g].begin(), d.new_block_ids[g].end());
      }
    }
    StepResult result;
    result.step_id = plan.step_id;
    for (const ScheduledRow& row : plan.rows) {
      Known& k = known_.at(row.id);
      for (size_t g = 0; g < config_.groups.size(); ++g) RunGroup(k, static_cast<int32_t>(g), row.num_tokens);
      k.computed += row.num_tokens;
      num_read_ += row.num_tokens;
      if (!row.sample) continue;
      const TokenId next = static_cast<TokenId>(Prefix(k, k.computed) % 50 + 10);  // a function of the prefix
      k.tokens.push_back(next);
      result.rows.push_back({row.id, {next}});
    }
    return result;
  }
  int64_t num_computed() const { return num_read_; }

 private:
  struct Known {
    std::vector<TokenId> tokens;
    std::vector<std::vector<BlockId>> tables;
    int32_t computed = 0;
    int32_t cached = 0;  // their KV is not written
  };

  static uint64_t Prefix(const Known& k, int32_t count) {
    uint64_t hash = 1;
    for (int32_t i = 0; i < count; ++i) hash = (hash ^ static_cast<uint64_t>(k.tokens[i])) * 0x9e3779b97f4a7c15 + 1;
    return hash;
  }

  void RunGroup(const Known& k, int32_t group, int32_t count) {
    const KvGroupSpec& spec = config_.groups[group];
    const int32_t size = spec.block_size > 0 ? spec.block_size : config_.block_size;
    const std::vector<BlockId>& table = k.tables[group];
    const int32_t end = k.computed + count;
    if (spec.kind == KvGroupKind::kState) {
      EXPECT_LE(k.cached, k.computed) << "a state is not taken back";
      if (k.computed > 0) {
        EXPECT_EQ(memory_[table[(k.computed - 1) / size]][0], Prefix(k, k.computed));
      }
      for (int32_t p = k.computed; p < end; ++p) {
        const BlockId block = table[p / size];
        if (block != kNullBlock && ((p + 1) % size == 0 || p == end - 1)) memory_[block][0] = Prefix(k, p + 1);
      }
      return;
    }
    const int32_t first = spec.kind == KvGroupKind::kFull ? 0 : std::max(0, k.computed - spec.window + 1);
    const int32_t there = std::max(k.computed, k.cached);
    for (int32_t p = first; p < there; ++p) EXPECT_EQ(memory_[table[p / size]][p % size], Prefix(k, p + 1));
    for (int32_t p = there; p < end; ++p) memory_[table[p / size]][p % size] = Prefix(k, p + 1);
  }

  KvConfig config_;
  std::vector<std::vector<uint64_t>> memory_;
  std::map<RequestId, Known> known_;
  int64_t num_read_ = 0;
};

class HybridScheduling : public ::testing::TestWithParam<int> {
 protected:
  static KvConfig Config(int kind, bool caching = true) {
    const KvGroupSpec window{KvGroupKind::kSlidingWindow, 9};
    const KvGroupSpec state{KvGroupKind::kState, 0, 8};
    KvConfig config;
    config.block_size = 4;
    config.num_blocks = 40;
    config.max_step_tokens = 64;
    config.enable_prefix_caching = caching;
    config.groups = std::vector<std::vector<KvGroupSpec>>{
        {window}, {state}, {KvGroupSpec{}, window}, {KvGroupSpec{}, state}, {KvGroupSpec{}, window, state}}[kind];
    return config;
  }

  static std::shared_ptr<Request> MakeRequest(RequestId id, std::mt19937* rng) {
    auto random = [rng](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(*rng); };
    auto request = std::make_shared<Request>();
    request->id = id;
    request->prompt.resize(random(1, 30));
    std::iota(request->prompt.begin(), request->prompt.end(), 1000 * random(0, 2));
    request->max_tokens = random(1, 12);
    return request;
  }

  // Output tokens of each request.
  static std::map<RequestId, std::vector<TokenId>> RunAll(const KvConfig& kv, int seed, SchedulerStats* stats) {
    std::mt19937 rng(seed);
    SchedConfig sched;
    sched.max_num_batched_tokens = 32;
    sched.max_num_seqs = 8;
    Scheduler scheduler(sched, kv);
    HybridExecutor executor(kv);
    std::map<RequestId, std::vector<TokenId>> outputs;
    for (RequestId id = 1; id <= 120; ++id) {
      EXPECT_TRUE(scheduler.Add(MakeRequest(id, &rng)).ok());
    }
    for (int step = 0; scheduler.HasWork(); ++step) {
      if (step >= 5000) ADD_FAILURE() << "requests do not end";
      if (step >= 5000) break;
      const StepPlan plan = scheduler.Schedule();
      for (const SequenceUpdate& update : scheduler.Update(plan, executor.Run(plan))) {
        auto& out = outputs[update.id];
        out.insert(out.end(), update.new_tokens.begin(), update.new_tokens.end());
      }
    }
    *stats = scheduler.stats();
    return outputs;
  }
};

TEST_P(HybridScheduling, EveryReadIsRightAndCachingChangesNoToken) {
  for (int seed = 1; seed <= 3; ++seed) {
    SchedulerStats cached, plain;
    const auto outputs = RunAll(Config(GetParam()), seed, &cached);
    EXPECT_EQ(outputs, RunAll(Config(GetParam(), false), seed, &plain));
    EXPECT_EQ(outputs.size(), 120u);
    EXPECT_GT(cached.prefix_hit_tokens, 0);
    EXPECT_LT(cached.scheduled_tokens, plain.scheduled_tokens);
    EXPECT_EQ(plain.preemptions > 0, Config(GetParam()).groups[0].kind == KvGroupKind::kFull);
    EXPECT_EQ(cached.used_blocks, 0);
    EXPECT_EQ(plain.used_blocks, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, HybridScheduling, ::testing::Range(0, 5));

TEST(SchedulerKv, QueryPinStatisticsAndEventsReachTheCache) {
  KvConfig kv;
  kv.num_blocks = 10;
  kv.block_size = 4;
  kv.kv_event_capacity = 100;
  Scheduler scheduler(SchedConfig{}, kv);
  HybridExecutor executor(kv);
  auto request = std::make_shared<Request>();
  request->id = 1;
  request->prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  request->max_tokens = 1;
  ASSERT_TRUE(scheduler.Add(request).ok());
  EXPECT_EQ(scheduler.CountCachedTokens(request->prompt, {}), 0);
  const StepPlan plan = scheduler.Schedule();
  scheduler.Update(plan, executor.Run(plan));
  EXPECT_FALSE(scheduler.HasWork());
  EXPECT_EQ(scheduler.CountCachedTokens(request->prompt, {}), 8);
  EXPECT_EQ(*scheduler.PinPrefix(request->prompt, {}, 1, 0), 8);
  EXPECT_EQ(scheduler.prefix_cache_stats().requests, 1);
  EXPECT_EQ(scheduler.prefix_cache_stats().query_tokens, 9);
  ASSERT_NE(scheduler.kv_events(), nullptr);
  std::vector<KvEvent> events;
  EXPECT_EQ(scheduler.kv_events()->Drain(10, &events), 2u);
  EXPECT_EQ(events[1].tokens, (std::vector<TokenId>{5, 6, 7, 8}));
}

}  // namespace
}  // namespace fastllm
