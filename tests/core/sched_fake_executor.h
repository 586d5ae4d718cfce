// An executor whose "KV" is a fingerprint of the tokens up to a position and whose "model" is a pure function of that
// fingerprint. It keeps its own copy of the sequences from the plans alone, checks that every plan is consistent, and
// that each row reads, through its block table, exactly the KV of its own tokens. So a block that is shared wrongly,
// evicted too early or not computed shows up, so does a write to KV that another sequence may read already, and the
// tokens of a request do not depend on scheduling.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/config/resolved.h"
#include "core/request/request.h"
#include "core/step/step_plan.h"
#include "core/step/step_result.h"

namespace fastllm {

inline uint64_t KvFingerprint(uint64_t before, TokenId token) {
  uint64_t x = (before ^ static_cast<uint64_t>(token + 1)) * 0xd6e8feb86659fd93ull;
  return x ^ (x >> 31);
}

// Not the engine's salt handling: the plan does not carry the salt, so the test tells it for each request.
inline uint64_t SaltFingerprint(const std::string& salt) {
  uint64_t x = 1;
  for (char c : salt) x = KvFingerprint(x, c);
  return x;
}

class KvCheckingExecutor {
 public:
  KvCheckingExecutor(const KvConfig& kv, int32_t vocab) : kv_(kv), vocab_(vocab) {
    cache_.assign(static_cast<size_t>(kv.num_blocks) * kv.block_size, 0);
  }

  static TokenId Sample(uint64_t fingerprint, int32_t vocab) { return static_cast<TokenId>(fingerprint % vocab); }

  void SetSalt(RequestId id, const std::string& salt) { salts_[id] = SaltFingerprint(salt); }

  StepResult Run(const StepPlan& plan) {
    for (RequestId id : plan.removed) EXPECT_EQ(sequences_.erase(id), 1u) << "removed " << id << " is unknown";
    for (const NewSequence& s : plan.added) {
      EXPECT_EQ(s.block_ids.size(), kv_.groups.size());
      EXPECT_TRUE(!s.repeats_last || s.num_computed_tokens + 1 == static_cast<int32_t>(s.tokens.size())) << s.id;
      const int32_t num_cached = s.num_computed_tokens + (s.repeats_last ? 1 : 0);
      num_repeats_ += s.repeats_last;
      EXPECT_TRUE(sequences_.emplace(s.id, State{s.tokens, s.num_computed_tokens, s.block_ids, num_cached}).second);
    }
    for (const SequenceDiff& d : plan.diffs) ApplyDiff(d);
    CheckDiffOrder(plan);
    int32_t total = 0;
    for (const ScheduledRow& row : plan.rows) {
      WriteKv(row);
      total += row.num_tokens;
    }
    EXPECT_EQ(total, plan.total_tokens);
    StepResult result;
    result.step_id = plan.step_id;
    for (const ScheduledRow& row : plan.rows) ReadKv(row, &result);
    for (auto& [id, s] : sequences_) s.num_settled = s.num_computed;
    return result;
  }

  size_t num_sequences() const { return sequences_.size(); }
  // Sequences that came with all of their KV in shared blocks.
  int64_t num_repeats() const { return num_repeats_; }

  // All blocks in the tables of the sequences it knows.
  std::set<BlockId> HeldBlocks() const {
    std::set<BlockId> held;
    for (const auto& [id, s] : sequences_) {
      for (const auto& table : s.blocks) held.insert(table.begin(), table.end());
    }
    return held;
  }

 private:
  struct State {
    std::vector<TokenId> tokens;
    int32_t num_computed = 0;
    std::vector<std::vector<BlockId>> blocks;
    int32_t num_cached = 0;   // the KV of these is not written
    int32_t num_settled = 0;  // computed before this plan
  };

  void ApplyDiff(const SequenceDiff& diff) {
    ASSERT_TRUE(sequences_.contains(diff.id)) << "diff of unknown " << diff.id;
    State& s = sequences_[diff.id];
    EXPECT_EQ(s.num_computed, diff.num_computed_tokens);
    if (diff.new_block_ids.empty()) return;  // no new blocks
    ASSERT_EQ(diff.new_block_ids.size(), kv_.groups.size());
    for (size_t g = 0; g < s.blocks.size(); ++g) {
      s.blocks[g].insert(s.blocks[g].end(), diff.new_block_ids[g].begin(), diff.new_block_ids[g].end());
    }
  }

  // Diffs come in row order, and every row is of a diff or of an added sequence.
  void CheckDiffOrder(const StepPlan& plan) {
    std::vector<RequestId> expected, rows;
    for (const SequenceDiff& d : plan.diffs) expected.push_back(d.id);
    for (const NewSequence& s : plan.added) expected.push_back(s.id);
    for (const ScheduledRow& row : plan.rows) rows.push_back(row.id);
    EXPECT_EQ(rows, expected);
  }

  uint64_t& Cell(const State& s, size_t group, int32_t position) {
    const BlockId block = s.blocks[group].at(position / kv_.block_size);
    EXPECT_NE(block, kNullBlock);
    return cache_.at(static_cast<size_t>(block) * kv_.block_size + position % kv_.block_size);
  }

  // The first position that a row which begins at `begin` reads in a group.
  int32_t FirstRead(size_t group, int32_t begin) const {
    const KvGroupSpec& spec = kv_.groups[group];
    return spec.kind == KvGroupKind::kSlidingWindow ? begin - spec.window + 1 : 0;
  }

  void WriteKv(const ScheduledRow& row) {
    ASSERT_TRUE(sequences_.contains(row.id)) << "row of unknown " << row.id;
    State& s = sequences_[row.id];
    ASSERT_GT(row.num_tokens, 0);
    ASSERT_LE(s.num_computed + row.num_tokens, static_cast<int32_t>(s.tokens.size()));
    uint64_t f = salts_.contains(row.id) ? salts_[row.id] : SaltFingerprint("");
    for (int32_t p = 0; p < s.num_computed + row.num_tokens; ++p) {
      f = KvFingerprint(f, s.tokens[p]);
      if (p < s.num_computed || p < s.num_cached) continue;
      for (size_t g = 0; g < s.blocks.size(); ++g) {
        Cell(s, g, p) = f;
        ExpectUnread(row.id, g, p);
      }
    }
  }

  // Blocks are shared where the tokens in front are equal, so at the same place of both tables. What lies behind a
  // window may be anybody's by now.
  void ExpectUnread(RequestId writer, size_t group, int32_t position) const {
    const size_t entry = position / kv_.block_size;
    const BlockId block = sequences_.at(writer).blocks[group][entry];
    for (const auto& [id, s] : sequences_) {
      const bool reads = FirstRead(group, s.num_settled) <= position && position < s.num_settled;
      if (id == writer || !reads || s.blocks[group][entry] != block) continue;
      ADD_FAILURE() << "request " << writer << " writes KV at " << position << " that " << id << " may read";
    }
  }

  void ReadKv(const ScheduledRow& row, StepResult* result) {
    if (!sequences_.contains(row.id)) return;
    State& s = sequences_[row.id];
    const int32_t end = s.num_computed + row.num_tokens;
    const size_t covered = s.blocks[0].size() * kv_.block_size;
    EXPECT_GE(covered, static_cast<size_t>(end)) << "the table of " << row.id << " is too short";
    uint64_t f = salts_.contains(row.id) ? salts_[row.id] : SaltFingerprint("");
    for (int32_t p = 0; p < end; ++p) {
      f = KvFingerprint(f, s.tokens[p]);
      for (size_t g = 0; g < s.blocks.size(); ++g) {
        if (p < FirstRead(g, s.num_computed)) continue;
        ASSERT_EQ(Cell(s, g, p), f) << "request " << row.id << " reads foreign KV at position " << p;
      }
    }
    s.num_computed = end;
    EXPECT_EQ(row.sample, end == static_cast<int32_t>(s.tokens.size()));
    if (!row.sample) return;
    const TokenId token = Sample(f, vocab_);
    s.tokens.push_back(token);
    result->rows.push_back({row.id, {token}});
  }

  KvConfig kv_;
  int32_t vocab_;
  std::map<RequestId, State> sequences_;
  std::map<RequestId, uint64_t> salts_;
  int64_t num_repeats_ = 0;
  std::vector<uint64_t> cache_;  // [block][block_size], one layer for all groups
};

// What the fake model generates for a request that nobody stops: `count` tokens.
inline std::vector<TokenId> FakeOutput(const Request& request, int32_t vocab, int32_t count) {
  uint64_t f = SaltFingerprint(request.extra_keys.cache_salt);
  for (TokenId token : request.prompt) f = KvFingerprint(f, token);
  std::vector<TokenId> output;
  while (static_cast<int32_t>(output.size()) < count) {
    output.push_back(KvCheckingExecutor::Sample(f, vocab));
    f = KvFingerprint(f, output.back());
  }
  return output;
}

}  // namespace fastllm
