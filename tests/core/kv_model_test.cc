// Random operations on KvManager against the slow model of kv_model.h and against a memory that says what each block
// holds. All kinds of groups, pins, resets, steps in flight; the state group is read and written by a recurrent double.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "core/kv/kv_manager.h"
#include "kv_model.h"

namespace fastllm {
namespace {

constexpr int kSlots = 6;
constexpr int kOperations = 60000;  // for each of the seeds below

KvConfig MakeConfig(int variant, std::mt19937* rng) {
  auto random = [rng](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(*rng); };
  const int window = random(2, 12);
  KvConfig config;
  config.block_size = random(2, 4);
  config.num_blocks = random(14, 60);
  config.max_step_tokens = random(0, 2) == 0 ? 0 : 24;
  config.prefix_hash_algo = variant % 4 == 3 ? PrefixHashAlgo::kSha256 : PrefixHashAlgo::kXxHash;
  config.kv_event_capacity = variant % 2 == 0 ? 0 : 64;
  const KvGroupSpec full, state{KvGroupKind::kState}, swa{KvGroupKind::kSlidingWindow, window};
  const KvGroupSpec wide_swa{KvGroupKind::kSlidingWindow, window, 2 * config.block_size};
  const KvGroupSpec wide_state{KvGroupKind::kState, 0, 3 * config.block_size};
  const std::vector<std::vector<KvGroupSpec>> groups = {
      {full},
      {swa},
      {full, swa},
      {state},
      {full, state},
      {full, wide_swa},
      {full, swa, wide_state},
      {wide_swa, wide_state},
      {full, full},
  };
  config.groups = groups[variant % groups.size()];
  return config;
}

class KvModelTest : public ::testing::TestWithParam<int> {
 protected:
  // A step that was planned and has not run: what it reads and writes, with its tables as they were then.
  struct Step {
    int slot = 0;
    int life = 0;  // of the slot
    int begin = 0, end = 0;
    int cached = 0;  // the KV of tokens before it is not written
    std::vector<int> contents;
    std::vector<std::vector<BlockId>> tables;
  };

  KvModelTest()
      : rng_(GetParam() * 7919 + 13),
        config_(MakeConfig(GetParam(), &rng_)),
        model_(config_),
        kv_(config_, [this] { return model_.now_ms; }),
        memory_(config_.num_blocks) {
    std::cout << "seed " << GetParam() << ", " << config_.groups.size() << " groups, " << config_.num_blocks
              << " blocks\n";
    for (auto& block : memory_) block.resize(64, -1);
  }

  int Random(int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng_); }

  void AddToken(ModelSlot* s) {
    s->tokens.push_back(Random(0, 19) == 0 ? 1 : 0);
    s->contents.push_back(model_.Content(s->salt, s->contents, s->tokens.back()));
  }

  void Open(int i) {
    ModelSlot& s = slots_[i];
    s = {};
    s.open = true;
    s.salt = std::string(Random(0, 1), 's');
    s.reads_cache = Random(0, 9) != 0;
    for (int n = Random(1, 50); n > 0; --n) AddToken(&s);
    ++life_[i];
    ExtraKeys keys;
    keys.cache_salt = s.salt;
    kv_.Open(i, keys, s.reads_cache);
  }

  void Admit(int i) {
    ModelSlot& s = slots_[i];
    for (const Step& step : steps_) {
      if (step.slot == i) return;  // a preempted sequence waits until its steps have run
    }
    const int num_tokens = static_cast<int>(s.tokens.size());
    const int wanted = model_.HitOf(s.contents);
    ExtraKeys keys;
    keys.cache_salt = s.salt;
    EXPECT_EQ(kv_.CountCachedTokens(s.tokens, keys), wanted);
    const int hit = kv_.FindPrefix(i, s.tokens);
    EXPECT_EQ(hit, s.reads_cache ? wanted : 0);
    const bool whole = s.reads_cache && model_.Whole(s.contents);
    EXPECT_EQ(kv_.hit_is_whole(), whole);
    const int num_new = std::min(Random(1, 12), num_tokens - hit);
    const bool ok = kv_.Admit(i, s.tokens, hit, num_new);
    EXPECT_EQ(ok, model_.Admit(&s, hit, num_new));
    if (!ok) return;
    if (s.reads_cache) {
      ++(s.counted ? stats_.preempted_requests : stats_.requests);
      (s.counted ? stats_.preempted_query_tokens : stats_.query_tokens) += num_tokens;
      (s.counted ? stats_.preempted_hit_tokens : stats_.hit_tokens) += hit;
      s.counted = true;
    }
    Plan(i, hit, hit + num_new, hit + (whole ? 1 : 0));
    num_whole_ += whole;
  }

  void Extend(int i) {
    ModelSlot& s = slots_[i];
    // One step of a sequence at most runs while the next is planned.
    auto is_mine = [&](const Step& step) { return step.slot == i && step.life == life_[i]; };
    while (std::ranges::count_if(steps_, is_mine) > 1) RunSteps(1);
    const auto mine = std::ranges::find_if(steps_, is_mine);
    const int in_flight = mine == steps_.end() ? 0 : mine->end - mine->begin;
    if (s.computed == static_cast<int>(s.tokens.size())) AddToken(&s);
    const int num_new = std::min(Random(1, 12), static_cast<int>(s.tokens.size()) - s.computed);
    const int begin = s.computed;
    std::vector<std::vector<BlockId>> added;
    const auto before = s.tables;
    const bool ok = kv_.Extend(i, s.tokens, s.computed, num_new, &added, in_flight);
    EXPECT_EQ(ok, model_.Extend(&s, num_new, in_flight));
    for (size_t g = 0; g < added.size(); ++g) {
      const auto tail = s.tables[g].begin() + static_cast<ptrdiff_t>(before[g].size());
      EXPECT_EQ(added[g], std::vector<BlockId>(tail, s.tables[g].end()));
    }
    if (ok) Plan(i, begin, begin + num_new);
  }

  void Act() {
    const int i = Random(0, kSlots - 1);
    ModelSlot& s = slots_[i];
    const int what = Random(0, 99);
    if (what < 2) {
      PinSome();
    } else if (what < 4) {
      model_.now_ms += Random(0, 60);
    } else if (what < 5) {
      EXPECT_EQ(kv_.ResetPrefixCache(), model_.Reset());
    } else if (what < 30) {
      RunSteps(Random(1, 3));
    } else if (!s.open) {
      Open(i);
    } else if (s.computed == 0 && what < 90) {
      Admit(i);
    } else if (what < 38 || s.computed == 0 || s.tokens.size() > 120) {
      kv_.Close(i);
      model_.Free(&s);
      s.open = false;
      ++life_[i];
    } else if (what < 42) {
      kv_.Free(i);
      model_.Free(&s);
      ++life_[i];
    } else {
      Extend(i);
    }
  }

  void PinSome() {
    const ModelSlot& s = slots_[Random(0, kSlots - 1)];
    const int level = Random(0, 3);
    const int64_t ttl = Random(0, 2) * 40;
    ExtraKeys keys;
    keys.cache_salt = s.salt;
    const Result<int32_t> pinned = kv_.PinPrefix(s.tokens, keys, level, ttl);
    ASSERT_TRUE(pinned.ok());
    EXPECT_EQ(*pinned, model_.Pin(s.contents, level, ttl));
  }

  void Plan(int i, int begin, int end, int cached = 0) {
    steps_.push_back({i, life_[i], begin, end, std::max(begin, cached), slots_[i].contents, slots_[i].tables});
    while (steps_.size() > 8) RunSteps(1);
  }

  void RunSteps(int count) {
    for (; count > 0 && !steps_.empty(); --count, steps_.pop_front()) RunStep(steps_.front());
  }

  void RunStep(const Step& step) {
    for (size_t g = 0; g < step.tables.size(); ++g) {
      const KvGroupSpec& spec = config_.groups[g];
      const int size = model_.Size(spec);
      const auto& table = step.tables[g];
      if (spec.kind == KvGroupKind::kState) {
        RunState(step, table, size);
        continue;
      }
      const int first = spec.kind == KvGroupKind::kFull ? 0 : std::max(0, step.begin - spec.window + 1);
      for (int p = first; p < step.cached; ++p) ASSERT_EQ(memory_[table[p / size]][p % size], step.contents[p]);
      for (int p = step.cached; p < step.end; ++p) memory_[table[p / size]][p % size] = step.contents[p];
    }
  }

  // The recurrent double: the state after a token is the number of the prefix that ends there.
  void RunState(const Step& step, const std::vector<BlockId>& table, int size) {
    if (step.begin > 0) {
      ASSERT_EQ(memory_[table[(step.begin - 1) / size]][0], step.contents[step.begin - 1]);
    }
    for (int p = step.begin; p < step.end; ++p) {
      const BlockId block = table[p / size];
      if (block != kNullBlock && ((p + 1) % size == 0 || p == step.end - 1)) memory_[block][0] = step.contents[p];
    }
  }

  void Check() {
    ASSERT_EQ(kv_.pool().FreeBlocks(), model_.FreeList());
    ASSERT_EQ(kv_.reserved_blocks(), model_.reserved());
    ASSERT_EQ(kv_.index()->num_cached_blocks(), model_.num_cached());
    std::vector<int> refs(config_.num_blocks);
    for (int i = 0; i < kSlots; ++i) {
      if (slots_[i].tables.empty()) continue;
      int held = 0;
      for (size_t g = 0; g < slots_[i].tables.size(); ++g) {
        ASSERT_EQ(kv_.table(i, static_cast<int>(g)), slots_[i].tables[g]);
        for (BlockId b : slots_[i].tables[g]) ++refs[b], held += b != kNullBlock;
      }
      ASSERT_LE(held, model_.Peak(slots_[i].computed));
    }
    int used = 0;
    for (BlockId b = 1; b < config_.num_blocks; ++b) {
      ASSERT_EQ(kv_.pool().ref_count(b), refs[b]);
      ASSERT_EQ(model_.ref(b), refs[b]);
      used += refs[b] > 0;
      // A block in two tables is one that both may read only.
      ASSERT_TRUE(refs[b] <= 1 || kv_.index()->Contains(b));
    }
    ASSERT_EQ(used + kv_.pool().num_free_blocks(), config_.num_blocks - 1);
    CheckStepsInFlight();
  }

  // What a planned step of a living sequence reads is still in that sequence's tables.
  void CheckStepsInFlight() {
    for (const Step& step : steps_) {
      if (step.life != life_[step.slot]) continue;
      for (size_t g = 0; g < step.tables.size(); ++g) {
        for (size_t e = 0; e < step.tables[g].size(); ++e) {
          if (!model_.Needed(config_.groups[g], static_cast<int>(e), step.begin)) continue;
          ASSERT_EQ(kv_.table(step.slot, static_cast<int>(g))[e], step.tables[g][e]);
        }
      }
    }
  }

  void CheckStats() {
    EXPECT_EQ(kv_.stats().requests, stats_.requests);
    EXPECT_EQ(kv_.stats().query_tokens, stats_.query_tokens);
    EXPECT_EQ(kv_.stats().hit_tokens, stats_.hit_tokens);
    EXPECT_EQ(kv_.stats().preempted_requests, stats_.preempted_requests);
    EXPECT_EQ(kv_.stats().preempted_query_tokens, stats_.preempted_query_tokens);
    EXPECT_EQ(kv_.stats().preempted_hit_tokens, stats_.preempted_hit_tokens);
    EXPECT_GT(stats_.requests, 100);
  }

  std::mt19937 rng_;
  KvConfig config_;
  KvModel model_;
  KvManager kv_;
  ModelSlot slots_[kSlots];
  int life_[kSlots] = {};
  std::deque<Step> steps_;
  std::vector<std::vector<int>> memory_;  // [block][position]: the prefix whose KV is there; [block][0]: whose state
  PrefixCacheStats stats_;
  int num_whole_ = 0;
};

TEST_P(KvModelTest, EqualsTheSlowModel) {
  for (int i = 0; i < kOperations; ++i) {
    Act();
    Check();
    if (HasFailure()) FAIL() << "seed " << GetParam() << ", operation " << i;
  }
  CheckStats();
  const auto is_state = [](const KvGroupSpec& g) { return g.kind == KvGroupKind::kState; };
  EXPECT_EQ(num_whole_ > 0, std::ranges::none_of(config_.groups, is_state)) << num_whole_;
  for (int i = 0; i < kSlots; ++i) {
    if (slots_[i].open) kv_.Close(i);
  }
  EXPECT_EQ(kv_.pool().num_used_blocks(), 0);
  EXPECT_EQ(kv_.reserved_blocks(), 0);
  EXPECT_TRUE(kv_.ResetPrefixCache());
  EXPECT_EQ(kv_.index()->num_nodes(), 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, KvModelTest, ::testing::Range(0, 18));

}  // namespace
}  // namespace fastllm
