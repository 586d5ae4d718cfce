// The scheduler under random loads: priorities, aborts, shared prefixes, tiny pools, steps in flight, all policies.
// What must hold is checked at every step; the tokens are those of the fake model alone, whatever the order of work.
// FASTLLM_SCHED_STEPS sets the number of steps (default 40,000 over all seeds).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/kv/kv_manager.h"
#include "core/sched/scheduler.h"
#include "sched_fake_executor.h"

namespace fastllm {
namespace {

constexpr int32_t kVocab = 97;
constexpr int kNumSeeds = 16;

int64_t StepsPerSeed() {
  const char* text = std::getenv("FASTLLM_SCHED_STEPS");
  return (text == nullptr ? 40000 : std::max(1, std::atoi(text))) / kNumSeeds;
}

// What the test knows of a request.
struct Model {
  std::shared_ptr<const Request> request;
  std::vector<TokenId> output;
  int64_t rounds_as_oldest = 0;
};

class ModelTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    rng_.seed(GetParam());
    kv_.block_size = Random(1, 6);
    kv_.num_blocks = Random(0, 2) == 0 ? Random(4, 12) : Random(12, 60);
    kv_.enable_prefix_caching = Random(0, 4) > 0;
    const KvGroupSpec window{KvGroupKind::kSlidingWindow, Random(1, 14), 0};
    if (const int32_t kinds = Random(0, 3); kinds > 1) {
      kv_.groups = kinds == 2 ? std::vector<KvGroupSpec>{{}, window} : std::vector<KvGroupSpec>{window};
    }
    sched_.max_num_seqs = Random(1, 12);
    sched_.max_num_batched_tokens = Random(sched_.max_num_seqs, 48);
    sched_.max_model_len = Random(0, 2) == 0 ? 0 : Random(20, 80);
    sched_.long_prefill_token_threshold = Random(0, 2) == 0 ? Random(1, 9) : 0;
    sched_.async_scheduling = GetParam() % 2 == 0;
    sched_.policy = GetParam() % 4 < 2 ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
    sched_.long_prefill_fair_share = Random(0, 1) == 0;
    sched_.max_num_mixed_prefill_tokens = Random(0, 2) == 0 ? Random(1, 12) : 0;
    sched_.watermark = Random(0, 2) == 0 ? 0.2f : 0.0f;
    kv_.max_step_tokens = 2 * sched_.max_num_batched_tokens;
    capacity_ = std::min(KvManager(kv_).capacity_tokens(), 400);
    scheduler_ = std::make_unique<Scheduler>(sched_, kv_, [this] { return now_ms_; });
    executor_ = std::make_unique<KvCheckingExecutor>(kv_, kVocab);
    std::cout << "seed " << GetParam() << ", " << kv_.num_blocks << " blocks of " << kv_.block_size << ", "
              << sched_.max_num_seqs << " seqs, " << kv_.groups.size() << " groups, window "
              << (kv_.groups.back().kind == KvGroupKind::kSlidingWindow ? window.window : 0) << "\n";
  }

  int32_t Random(int32_t lo, int32_t hi) { return std::uniform_int_distribution<int32_t>(lo, hi)(rng_); }

  void AddRandom() {
    auto request = std::make_shared<Request>();
    // At times an id that was in use, even with its results still in flight.
    request->id = ids_.ended != 0 && Random(0, 19) == 0 ? std::exchange(ids_.ended, 0) : ++ids_.last;
    const int32_t most = sched_.max_model_len > 0 ? std::min(capacity_, sched_.max_model_len - 1) : capacity_;
    const int32_t length = Random(1, std::max(1, std::min(40, most * 3 / 4)));
    const int32_t shared = Random(0, 1) == 0 ? 0 : Random(0, length);
    const int32_t family = Random(0, 2);
    for (int32_t i = 0; i < length; ++i) {
      request->prompt.push_back(i < shared ? (family * 31 + i) % kVocab : Random(0, kVocab - 1));
    }
    if (!live_.empty() && Random(0, 4) == 0) {  // one that there is already
      const auto live = static_cast<int32_t>(live_.size());
      const Request& other = *std::next(live_.begin(), Random(0, live - 1))->second.request;
      request->prompt = other.prompt;
      request->extra_keys = other.extra_keys;
    }
    const auto count = static_cast<int32_t>(request->prompt.size());
    request->max_tokens = Random(1, std::min(30, capacity_ + 1 - count));
    request->eos_token_ids = {0};
    request->sampling.stop_token_ids = {2};
    request->sampling.ignore_eos = Random(0, 3) == 0;
    request->sampling.min_tokens = Random(0, 3) == 0 ? Random(0, request->max_tokens) : 0;
    request->priority = Random(-1, 1);
    request->read_prefix_cache = Random(0, 9) > 0;
    request->timeout_ms = Random(0, 15) == 0 ? Random(1, 60) : 0;
    if (Random(0, 4) == 0) request->extra_keys.cache_salt = std::string(1, static_cast<char>('a' + Random(0, 1)));
    const Status status = scheduler_->Add(request);
    ASSERT_TRUE(status.ok()) << status.ToString();
    salts_.emplace_back(request->id, request->extra_keys.cache_salt);
    live_[request->id] = {request, {}, 0};
  }

  void AbortRandom() {
    if (live_.empty()) return;
    const RequestId id = std::next(live_.begin(), Random(0, static_cast<int32_t>(live_.size()) - 1))->first;
    EXPECT_TRUE(scheduler_->Finish(id));
    EndOf(id);
  }

  // What is cached of a live prompt, for a time. Nothing else may come of it than another order of eviction.
  void PinRandom() {
    if (live_.empty()) return;
    const Request& request =
        *std::next(live_.begin(), Random(0, static_cast<int32_t>(live_.size()) - 1))->second.request;
    const int32_t cached = scheduler_->CountCachedTokens(request.prompt, request.extra_keys);
    EXPECT_LT(cached, static_cast<int32_t>(request.prompt.size()));
    const auto pinned = scheduler_->PinPrefix(request.prompt, request.extra_keys, Random(0, 3), Random(0, 40));
    ASSERT_TRUE(pinned.ok());
    EXPECT_GE(*pinned, cached);
  }

  void EndOf(RequestId id) {
    live_.erase(id);
    ids_.ended = id;
  }

  void CheckPlan(const StepPlan& plan) {
    EXPECT_LE(plan.total_tokens, sched_.max_num_batched_tokens);
    EXPECT_LE(static_cast<int32_t>(plan.rows.size()), sched_.max_num_seqs);
    std::set<RequestId> ids;
    for (const ScheduledRow& row : plan.rows) {
      EXPECT_TRUE(ids.insert(row.id).second) << row.id << " is in two rows";
      ASSERT_TRUE(live_.contains(row.id)) << row.id << " is not live";
      if (sched_.long_prefill_token_threshold > 0 && live_.size() > 1) {
        EXPECT_LE(row.num_tokens, sched_.long_prefill_token_threshold);
      }
    }
    CheckMixed(plan);
    CheckStats();
  }

  void CheckMixed(const StepPlan& plan) {
    if (sched_.max_num_mixed_prefill_tokens == 0) return;
    const bool decodes = std::ranges::any_of(plan.diffs, [this](const SequenceDiff& diff) {
      return std::cmp_greater_equal(diff.num_computed_tokens, live_.at(diff.id).request->prompt.size());
    });
    if (!decodes) return;
    int32_t prompt_tokens = 0;
    for (const ScheduledRow& row : plan.rows) prompt_tokens += row.num_tokens > 1 || !row.sample ? row.num_tokens : 0;
    EXPECT_LE(prompt_tokens, sched_.max_num_mixed_prefill_tokens);
  }

  void CheckStats() {
    const SchedulerStats stats = scheduler_->stats();
    EXPECT_LE(stats.running, sched_.max_num_seqs);
    EXPECT_GE(stats.running, 0);
    EXPECT_EQ(stats.used_blocks + stats.free_blocks, kv_.num_blocks - 1);
    EXPECT_EQ(stats.running + stats.waiting, static_cast<int32_t>(live_.size()));
    EXPECT_EQ(stats.queued_tokens == 0, stats.waiting == 0);
    EXPECT_LE(stats.waiting_preempted, stats.waiting);
    EXPECT_GE(stats.waiting_preempted, 0);
    EXPECT_EQ(scheduler_->HasWork(), !live_.empty());
    EXPECT_TRUE(stats.running > 0 || stats.used_blocks == 0);
  }

  // Nobody is passed over for ever.
  void CheckProgress() {
    if (live_.empty()) return;
    Model& first = live_.begin()->second;
    ASSERT_LT(++first.rounds_as_oldest, 3000) << "request " << live_.begin()->first << " does not end";
  }

  void Plan() {
    for (const ExpiredRequest& expired : scheduler_->Expire()) {
      ASSERT_TRUE(live_.contains(expired.id));
      EXPECT_GT(live_[expired.id].request->timeout_ms, 0);
      EndOf(expired.id);
    }
    StepPlan plan = scheduler_->Schedule();
    CheckPlan(plan);
    if (plan.rows.empty()) {
      EXPECT_TRUE(live_.empty() || !in_flight_.empty()) << "there is work, nothing in flight and nothing is planned";
      return;
    }
    in_flight_.push_back({std::move(plan), std::exchange(salts_, {})});
  }

  void Complete() {
    const auto [plan, salts] = std::move(in_flight_.front());
    in_flight_.pop_front();
    for (const auto& [id, salt] : salts) executor_->SetSalt(id, salt);
    const StepResult result = executor_->Run(plan);
    ++num_.steps;
    for (SequenceUpdate& update : scheduler_->Update(plan, result)) Take(update);
  }

  void Take(const SequenceUpdate& update) {
    ASSERT_TRUE(live_.contains(update.id)) << "news of ended request " << update.id;
    Model& model = live_[update.id];
    model.output.insert(model.output.end(), update.new_tokens.begin(), update.new_tokens.end());
    if (update.finish_reason == FinishReason::kNone) return;
    CheckFinished(*model.request, model.output, update);
    EndOf(update.id);
    ++num_.finished;
  }

  void CheckFinished(const Request& request, const std::vector<TokenId>& output, const SequenceUpdate& update) {
    int32_t count = request.max_tokens;
    if (sched_.max_model_len > 0) {
      count = std::min(count, sched_.max_model_len - static_cast<int32_t>(request.prompt.size()));
    }
    std::vector<TokenId> expected = FakeOutput(request, kVocab, count);
    const auto from = expected.begin() + std::min<ptrdiff_t>(request.sampling.min_tokens, count);
    const auto stop = std::find_if(
        from, expected.end(), [&request](TokenId t) { return t == 2 || (t == 0 && !request.sampling.ignore_eos); });
    const bool stopped = stop != expected.end();
    if (stopped) expected.erase(stop + 1, expected.end());
    EXPECT_EQ(output, expected) << request.id;
    EXPECT_EQ(update.finish_reason, stopped ? FinishReason::kStop : FinishReason::kLength);
  }

  void Round() {
    now_ms_ += 1;
    for (int32_t n = Random(0, 2); n > 0 && live_.size() < 30; --n) AddRandom();
    if (Random(0, 15) == 0) AbortRandom();
    if (Random(0, 15) == 0) PinRandom();
    while (static_cast<int32_t>(in_flight_.size()) < scheduler_->max_in_flight()) {
      const size_t before = in_flight_.size();
      Plan();
      if (in_flight_.size() == before) break;
      if (Random(0, 15) == 0) AbortRandom();
    }
    if (!in_flight_.empty()) Complete();
    CheckStats();
    CheckProgress();
  }

  std::mt19937 rng_;
  SchedConfig sched_;
  KvConfig kv_;
  int32_t capacity_ = 0;  // tokens of one sequence
  int64_t now_ms_ = 1;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<KvCheckingExecutor> executor_;
  std::map<RequestId, Model> live_;
  // The executor learns a salt with the first plan that may have its sequence.
  std::vector<std::pair<RequestId, std::string>> salts_;
  std::deque<std::pair<StepPlan, std::vector<std::pair<RequestId, std::string>>>> in_flight_;
  struct {
    RequestId last = 0;
    RequestId ended = 0;  // one that may be used again
  } ids_;
  struct {
    int64_t steps = 0;
    int64_t finished = 0;
  } num_;
};

TEST_P(ModelTest, EveryPromiseHoldsAtEveryStep) {
  const int64_t steps = StepsPerSeed();
  while (num_.steps < steps) {
    Round();
    if (HasFatalFailure() || HasNonfatalFailure()) return;
    if (Random(0, 400) != 0) continue;
    // At times all work ends: nothing may be left behind.
    while (!live_.empty() || !in_flight_.empty()) {
      Plan();
      if (!in_flight_.empty()) Complete();
      if (HasFailure()) return;
    }
    EXPECT_EQ(scheduler_->stats().used_blocks, 0);
    EXPECT_TRUE(scheduler_->ResetPrefixCache());
  }
  EXPECT_GT(num_.finished, steps / 100);
  if (kv_.enable_prefix_caching && kv_.num_blocks > 12) {
    EXPECT_GT(executor_->num_repeats(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ModelTest, ::testing::Range(1, 1 + kNumSeeds));

// One load, overlapped or not, under both policies and with all options: the tokens are the same.
class SameTokens : public ::testing::TestWithParam<int> {
 protected:
  static std::map<RequestId, std::vector<TokenId>> Outputs(int seed, bool async, bool priority, int64_t* preemptions) {
    std::mt19937 rng(seed);
    const auto random = [&rng](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng); };
    SchedConfig sched;
    sched.max_num_seqs = 6;
    sched.max_num_batched_tokens = 24;
    sched.async_scheduling = async;
    sched.policy = priority ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
    KvConfig kv;
    kv.num_blocks = 24;
    kv.block_size = 4;
    Scheduler scheduler(sched, kv);
    KvCheckingExecutor executor(kv, kVocab);
    for (RequestId id = 1; id <= 200; ++id) {
      auto request = std::make_shared<Request>();
      request->id = id;
      const int family = random(0, 3);
      for (int i = random(1, 30); i > 0; --i) request->prompt.push_back((family * 17 + i / 9) % kVocab);
      request->max_tokens = random(1, 30);
      request->sampling.stop_token_ids = {1, 5};
      request->priority = random(0, 3);
      EXPECT_TRUE(scheduler.Add(request).ok());
    }
    std::map<RequestId, std::vector<TokenId>> outputs;
    std::deque<StepPlan> in_flight;
    while (scheduler.HasWork() || !in_flight.empty()) {
      StepPlan plan = scheduler.Schedule();
      if (!plan.rows.empty()) {
        in_flight.push_back(std::move(plan));
        if (static_cast<int32_t>(in_flight.size()) < scheduler.max_in_flight()) continue;
      }
      for (const SequenceUpdate& update : scheduler.Update(in_flight.front(), executor.Run(in_flight.front()))) {
        auto& out = outputs[update.id];
        out.insert(out.end(), update.new_tokens.begin(), update.new_tokens.end());
      }
      in_flight.pop_front();
    }
    *preemptions = scheduler.stats().preemptions;
    EXPECT_EQ(scheduler.stats().used_blocks, 0);
    return outputs;
  }
};

TEST_P(SameTokens, OverlappedOrNotUnderEitherPolicy) {
  int64_t preemptions = 0;
  const auto expected = Outputs(GetParam(), false, false, &preemptions);
  EXPECT_EQ(expected.size(), 200u);
  for (const auto& [async, priority] : {std::pair(true, false), std::pair(false, true), std::pair(true, true)}) {
    EXPECT_EQ(Outputs(GetParam(), async, priority, &preemptions), expected);
    EXPECT_GT(preemptions, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SameTokens, ::testing::Range(1, 4));

}  // namespace
}  // namespace fastllm
