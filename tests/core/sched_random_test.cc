// 500 random requests with random aborts through the scheduler and the fake executor, for many configurations.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/sched/scheduler.h"
#include "sched_fake_executor.h"

namespace fastllm {
namespace {

constexpr int32_t kVocab = 97;
constexpr int kNumRequests = 500;

struct RandomCase {
  int seed;
  int32_t num_blocks;
  int32_t block_size;
  int32_t max_num_seqs;
  int32_t max_num_batched_tokens;
  int32_t threshold;
  bool caching;
  bool chunked;
  int num_groups;
  bool early_plans;  // at times the next plan is made before the result of the last one
};

class RandomScheduling : public ::testing::TestWithParam<RandomCase> {
 protected:
  void SetUp() override {
    const RandomCase& c = GetParam();
    rng_.seed(c.seed);
    sched_ = {c.max_num_seqs, c.max_num_batched_tokens, 0, c.threshold, c.chunked};
    kv_.num_blocks = c.num_blocks;
    kv_.block_size = c.block_size;
    kv_.enable_prefix_caching = c.caching;
    kv_.groups.assign(c.num_groups, KvGroupSpec{});
    scheduler_ = std::make_unique<Scheduler>(sched_, kv_);
    executor_ = std::make_unique<KvCheckingExecutor>(kv_, kVocab);
    capacity_ = (c.num_blocks - 1) / c.num_groups * c.block_size;
    if (!c.chunked) capacity_ = std::min(capacity_, c.max_num_batched_tokens);
  }

  int32_t Random(int32_t lo, int32_t hi) { return std::uniform_int_distribution<int32_t>(lo, hi)(rng_); }

  // Prompts often start with one of three long prefixes, so that hits, also in one step, are common.
  void AddRandom(RequestId id) {
    auto request = std::make_shared<Request>();
    request->id = id;
    const int32_t most_prompt = std::min(60, capacity_ / 2);
    const int32_t length = Random(1, most_prompt);
    const int32_t shared = Random(0, 1) == 0 ? 0 : Random(0, length);
    const int32_t family = Random(0, 2);
    for (int32_t i = 0; i < length; ++i) {
      request->prompt.push_back(i < shared ? (family * 31 + i) % kVocab : Random(0, kVocab - 1));
    }
    request->max_tokens = Random(1, std::min(40, capacity_ + 1 - length));
    request->eos_token_ids = {0, 1};
    request->sampling.stop_token_ids = {2};
    if (Random(0, 4) == 0) request->extra_keys.cache_salt = std::string(1, static_cast<char>('a' + Random(0, 1)));
    executor_->SetSalt(id, request->extra_keys.cache_salt);
    ASSERT_TRUE(scheduler_->Add(request).ok());
    live_.insert(id);
    requests_[id] = request;
  }

  void AbortRandom() {
    if (live_.empty()) return;
    auto it = live_.begin();
    std::advance(it, Random(0, static_cast<int32_t>(live_.size()) - 1));
    EXPECT_TRUE(scheduler_->Finish(*it));
    live_.erase(it);
  }

  void CheckPlan(const StepPlan& plan) {
    EXPECT_LE(plan.total_tokens, sched_.max_num_batched_tokens);
    EXPECT_LE(static_cast<int32_t>(plan.rows.size()), sched_.max_num_seqs);
    std::set<RequestId> ids;
    for (const ScheduledRow& row : plan.rows) {
      EXPECT_TRUE(ids.insert(row.id).second) << row.id << " is in two rows";
      EXPECT_TRUE(live_.contains(row.id)) << row.id << " is not live";
    }
    // A removed one is in the plan only when it starts anew (removed by a plan without rows, which nobody ran).
    std::set<RequestId> added;
    for (const NewSequence& s : plan.added) added.insert(s.id);
    for (RequestId id : plan.removed) EXPECT_EQ(ids.contains(id), added.contains(id)) << id;
    const SchedulerStats stats = scheduler_->stats();
    EXPECT_LE(stats.running, sched_.max_num_seqs);
    EXPECT_EQ(stats.used_blocks + stats.free_blocks, kv_.num_blocks - 1);
    EXPECT_EQ(stats.running + stats.waiting, static_cast<int32_t>(live_.size()));
  }

  void Apply(const StepPlan& plan, const StepResult& result) {
    for (const SequenceUpdate& update : scheduler_->Update(plan, result)) {
      ASSERT_TRUE(live_.contains(update.id)) << "news of ended request " << update.id;
      std::vector<TokenId>& output = outputs_[update.id];
      output.insert(output.end(), update.new_tokens.begin(), update.new_tokens.end());
      if (update.finish_reason == FinishReason::kNone) continue;
      live_.erase(update.id);
      CheckFinished(*requests_[update.id], update);
    }
  }

  // The tokens are those of the model alone, up to the first that stops.
  void CheckFinished(const Request& request, const SequenceUpdate& update) {
    std::vector<TokenId> expected = FakeOutput(request, kVocab, request.max_tokens);
    const auto stop = std::find_if(expected.begin(), expected.end(), [](TokenId t) { return t <= 2; });
    const bool stopped = stop != expected.end();
    if (stopped) expected.erase(stop + 1, expected.end());
    EXPECT_EQ(outputs_[request.id], expected) << request.id;
    EXPECT_EQ(update.finish_reason, stopped ? FinishReason::kStop : FinishReason::kLength);
    const bool has_reason = stopped && expected.back() != 0;
    EXPECT_EQ(update.stop_reason, has_reason ? StopReason(expected.back()) : StopReason());
    ++num_finished_;
  }

  void Step() {
    const StepPlan plan = scheduler_->Schedule();
    ASSERT_FALSE(plan.rows.empty()) << "there is work, but nothing is planned";
    CheckPlan(plan);
    if (GetParam().early_plans && Random(0, 2) == 0) {
      const StepPlan next = scheduler_->Schedule();
      CheckPlan(next);
      const StepResult result = executor_->Run(plan);
      if (Random(0, 3) == 0) AbortRandom();
      Apply(plan, result);
      if (!next.rows.empty()) Apply(next, executor_->Run(next));
      return;
    }
    const StepResult result = executor_->Run(plan);
    // The executor now knows just the running sequences: the pool must hold the blocks of their tables, no others.
    EXPECT_EQ(scheduler_->stats().used_blocks, static_cast<int32_t>(executor_->HeldBlocks().size()));
    EXPECT_EQ(scheduler_->stats().running, static_cast<int32_t>(executor_->num_sequences()));
    if (Random(0, 9) == 0) AbortRandom();  // its result is in flight
    Apply(plan, result);
  }

  std::mt19937 rng_;
  SchedConfig sched_;
  KvConfig kv_;
  int32_t capacity_ = 0;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<KvCheckingExecutor> executor_;
  std::set<RequestId> live_;
  std::map<RequestId, std::shared_ptr<const Request>> requests_;
  std::map<RequestId, std::vector<TokenId>> outputs_;
  int num_finished_ = 0;
};

TEST_P(RandomScheduling, KeepsEveryPromiseAndLeavesNothingBehind) {
  RequestId next_id = 1;
  int steps = 0;
  while (next_id <= kNumRequests || scheduler_->HasWork()) {
    for (int32_t n = Random(0, 3); n > 0 && next_id <= kNumRequests; --n) AddRandom(next_id++);
    if (Random(0, 7) == 0) AbortRandom();
    if (scheduler_->HasWork()) Step();
    ASSERT_LT(++steps, 200000) << "no progress";
    if (HasFailure()) return;
  }
  const SchedulerStats stats = scheduler_->stats();
  EXPECT_TRUE(live_.empty());
  EXPECT_EQ(stats.used_blocks, 0);
  EXPECT_EQ(stats.free_blocks, kv_.num_blocks - 1);
  EXPECT_GT(num_finished_, kNumRequests / 4);
  EXPECT_EQ(stats.prefix_hit_tokens > 0, GetParam().caching);
  EXPECT_LE(stats.prefix_hit_tokens, stats.prefix_query_tokens);
  EXPECT_TRUE(scheduler_->ResetPrefixCache());
  const bool small_pool = kv_.num_blocks < 60;
  EXPECT_TRUE(!small_pool || stats.preemptions > 0) << "the pool was meant to be too small";
}

INSTANTIATE_TEST_SUITE_P(Configs, RandomScheduling,
                         //            seed blocks bs seqs batch thr  cache chunk groups early
                         ::testing::Values(RandomCase{1, 400, 4, 16, 64, 0, true, true, 1, false},
                                           RandomCase{2, 40, 4, 16, 64, 0, true, true, 1, false},
                                           RandomCase{3, 40, 4, 16, 17, 0, false, true, 1, false},
                                           RandomCase{4, 50, 4, 16, 64, 5, true, true, 2, false},
                                           RandomCase{5, 200, 1, 8, 32, 7, true, true, 1, true},
                                           RandomCase{6, 12, 16, 4, 100, 0, true, true, 1, true},
                                           RandomCase{7, 40, 4, 16, 80, 0, true, false, 1, false},
                                           RandomCase{8, 40, 4, 16, 64, 3, true, true, 1, true},
                                           RandomCase{9, 9, 4, 3, 7, 0, true, true, 1, false},
                                           RandomCase{10, 25, 3, 16, 6, 0, true, true, 1, false}));

}  // namespace
}  // namespace fastllm
