#include "ops/contract/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/base/check.h"
#include "support.h"

namespace fastllm::ops {
namespace {

struct Shape {
  int q_heads, kv_heads, head_dim, block_size;
};

struct Seq {
  int seq_len, query_len;
};

// A batch with its own cache, blocks scattered at random; every cache element that no sequence owns is NaN, so that a
// read of it shows. Contents depend on (seed, sequence id, position) only, never on the batch.
struct Batch {
  Shape shape;
  std::vector<Seq> seqs;
  int max_blocks = 0;
  int q_stride = 0;
  std::vector<float> k, v, q, out;
  std::vector<int32_t> query_start{0}, seq_len, table;

  // ids[s] names the contents of sequence s.
  Batch(const Shape& sh, std::vector<Seq> s, const std::vector<int>& ids, uint64_t layout_seed) : shape(sh), seqs(s) {
    int blocks = 1;
    for (const Seq& x : seqs) {
      const int n = (x.seq_len + sh.block_size - 1) / sh.block_size;
      max_blocks = std::max(max_blocks, n + 1);
      blocks += n;
    }
    std::vector<int32_t> order(blocks - 1);
    std::iota(order.begin(), order.end(), 1);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(layout_seed));
    table.assign(seqs.size() * max_blocks, 0);
    const size_t cache = static_cast<size_t>(blocks) * sh.kv_heads * sh.block_size * sh.head_dim;
    k.assign(cache, std::nanf(""));
    v.assign(cache, std::nanf(""));
    q_stride = sh.q_heads * sh.head_dim + 3;
    size_t next = 0;
    for (size_t i = 0; i < seqs.size(); ++i) {
      for (int b = 0; b * sh.block_size < seqs[i].seq_len; ++b) table[i * max_blocks + b] = order[next++];
      query_start.push_back(query_start.back() + seqs[i].query_len);
      seq_len.push_back(seqs[i].seq_len);
    }
    q.assign(static_cast<size_t>(query_start.back()) * q_stride, std::nanf(""));
    out.assign(static_cast<size_t>(query_start.back()) * sh.q_heads * sh.head_dim, std::nanf(""));
    for (size_t i = 0; i < seqs.size(); ++i) Fill(static_cast<int>(i), ids[i]);
  }

  size_t CacheAt(int s, int pos, int head) const {
    const size_t block = table[s * max_blocks + pos / shape.block_size];
    return ((block * shape.kv_heads + head) * shape.block_size + pos % shape.block_size) * shape.head_dim;
  }

  void Fill(int s, int id) {
    const int kv = shape.kv_heads * shape.head_dim, qn = shape.q_heads * shape.head_dim;
    for (int pos = 0; pos < seqs[s].seq_len; ++pos) {
      const auto x = RandomNormal(2 * kv + qn, id * 100003ull + pos);
      for (int h = 0; h < shape.kv_heads; ++h) {
        std::copy_n(&x[h * shape.head_dim], shape.head_dim, &k[CacheAt(s, pos, h)]);
        std::copy_n(&x[kv + h * shape.head_dim], shape.head_dim, &v[CacheAt(s, pos, h)]);
      }
      const int row = pos - (seqs[s].seq_len - seqs[s].query_len);
      if (row >= 0) std::copy_n(&x[2 * kv], qn, &q[static_cast<size_t>(query_start[s] + row) * q_stride]);
    }
  }

  PagedAttentionParams Params() {
    PagedAttentionParams p;
    const size_t block = static_cast<size_t>(shape.kv_heads) * shape.block_size * shape.head_dim;
    p.cache = {k.data(),       v.data(),         static_cast<int32_t>(k.size() / block),
               shape.kv_heads, shape.block_size, shape.head_dim};
    p.out = out.data();
    p.q = q.data();
    p.query_start = query_start.data();
    p.seq_len = seq_len.data();
    p.block_table = table.data();
    p.q_stride = q_stride;
    p.num_tokens = query_start.back();
    p.num_seqs = static_cast<int32_t>(seqs.size());
    p.max_blocks = max_blocks;
    p.num_q_heads = shape.q_heads;
    p.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    return p;
  }

  std::vector<double> Reference() const {
    std::vector<double> want(out.size());
    const int dim = shape.head_dim, group = shape.q_heads / shape.kv_heads;
    for (size_t s = 0; s < seqs.size(); ++s) {
      for (int r = 0; r < seqs[s].query_len; ++r) {
        const int last = seqs[s].seq_len - seqs[s].query_len + r;
        for (int h = 0; h < shape.q_heads; ++h) {
          const size_t token = query_start[s] + r;
          std::vector<double> w(last + 1);
          for (int j = 0; j <= last; ++j) {
            for (int d = 0; d < dim; ++d) {
              w[j] += static_cast<double>(q[token * q_stride + h * dim + d]) * k[CacheAt(s, j, h / group) + d];
            }
            w[j] /= std::sqrt(static_cast<double>(dim));
          }
          const double max = *std::max_element(w.begin(), w.end());
          double sum = 0;
          for (double& x : w) sum += x = std::exp(x - max);
          for (int j = 0; j <= last; ++j) {
            for (int d = 0; d < dim; ++d) {
              want[(token * shape.q_heads + h) * dim + d] += w[j] / sum * v[CacheAt(s, j, h / group) + d];
            }
          }
        }
      }
    }
    return want;
  }
};

using Attention = ArmTest;

TEST_P(Attention, MatchesFloat64OverShapesAndMixes) {
  const auto fn = Get<PagedAttentionFn>(OpId::kPagedAttention, kFeatureGqa);
  const std::vector<Seq> mixes[] = {
      {{1, 1}}, {{130, 1}}, {{40, 40}}, {{70, 33}, {1, 1}, {65, 1}, {64, 64}, {129, 2}, {5, 0}, {20, 19}}};
  for (const Shape s : {Shape{1, 1, 16, 1},
                        {2, 1, 24, 8},
                        {9, 3, 64, 16},
                        {4, 4, 100, 32},
                        {9, 1, 128, 16},
                        {5, 1, 256, 8},
                        {14, 2, 80, 16},
                        {8, 2, 17, 16},
                        {71, 1, 64, 16},
                        {6, 3, 3, 3}}) {
    for (const auto& mix : mixes) {
      std::vector<int> ids(mix.size());
      std::iota(ids.begin(), ids.end(), 1);
      Batch b(s, mix, ids, 5);
      fn(b.Params(), {nullptr, 3});
      EXPECT_LT(MaxError(b.out, b.Reference()), 4e-6) << s.q_heads << "/" << s.kv_heads << " dim " << s.head_dim
                                                      << " block " << s.block_size << " seqs " << mix.size();
    }
  }
}

// The output of `len` tokens computed in chunks, each alone or among others, in the order of positions.
std::vector<float> InChunks(PagedAttentionFn fn, const Shape& shape, int len, int chunk, bool mates, int threads) {
  std::vector<float> all;
  for (int done = 0; done < len; done += chunk) {
    const int n = std::min(chunk, len - done);
    const Seq mine{done + n, n};
    Batch b = mates ? Batch(shape, {{33, 7}, mine, {90, 1}, {12, 12}}, {50, 7, 51, 52}, done + 1)
                    : Batch(shape, {mine}, {7}, done + 9);
    fn(b.Params(), {nullptr, threads});
    const size_t row = static_cast<size_t>(shape.q_heads) * shape.head_dim;
    const size_t first = mates ? 7 * row : 0;
    all.insert(all.end(), b.out.begin() + first, b.out.begin() + first + n * row);
  }
  return all;
}

TEST_P(Attention, BitsDoNotDependOnChunkingBatchMatesThreadsOrLayout) {
  const auto fn = Get<PagedAttentionFn>(OpId::kPagedAttention, kFeatureGqa);
  for (const Shape s : {Shape{9, 3, 64, 16}, {5, 1, 40, 8}, {2, 2, 128, 32}, {7, 1, 20, 1}}) {
    const int len = s.q_heads == 9 ? 530 : 150;  // 530: three splits of the positions
    const auto want = InChunks(fn, s, len, 512, false, 1);
    for (const int chunk : {1, 2, 7, 16, 64, 65, 150, 257}) {
      if (len == 530 && chunk < 64) continue;  // minutes of filling caches
      for (const bool mates : {false, true}) {
        const auto got = InChunks(fn, s, len, chunk, mates, 1 + chunk % 3);
        ASSERT_EQ(got.size(), want.size());
        EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
            << "chunk " << chunk << " mates " << mates << " dim " << s.head_dim;
      }
    }
  }
}

// Long decode rows, which the op may split by positions, in every mix of threads and batch mates.
TEST_P(Attention, LongDecodeRowsMatchFloat64AndKeepTheirBitsOnAnyThreads) {
  const auto fn = Get<PagedAttentionFn>(OpId::kPagedAttention, kFeatureGqa);
  for (const Shape s : {Shape{9, 3, 64, 16}, {4, 1, 100, 32}, {2, 2, 24, 16}}) {
    for (const int len : {256, 257, 1030, 2100}) {
      Batch alone(s, {{len, 1}}, {7}, 3);
      fn(alone.Params(), {nullptr, 1});
      EXPECT_LT(MaxError(alone.out, alone.Reference()), 4e-6) << "dim " << s.head_dim << " len " << len;
      for (const int threads : {2, 8}) {
        Batch again(s, {{len, 1}}, {7}, 4);
        fn(again.Params(), {nullptr, threads});
        EXPECT_EQ(again.out, alone.out) << "len " << len << " threads " << threads;
        Batch mates(s, {{300, 2}, {len, 1}, {20, 1}, {700, 5}}, {8, 7, 9, 10}, 5);
        fn(mates.Params(), {nullptr, threads});
        EXPECT_LT(MaxError(mates.out, mates.Reference()), 4e-6);
        const size_t row = static_cast<size_t>(s.q_heads) * s.head_dim;
        EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(), mates.out.begin() + 2 * row)) << "len " << len;
      }
    }
  }
}

TEST_P(Attention, LaterTokensNeverReachEarlierOnes) {
  const auto fn = Get<PagedAttentionFn>(OpId::kPagedAttention);
  const Shape s{6, 2, 64, 16};
  Batch b(s, {{100, 100}}, {3}, 1);
  fn(b.Params(), {});
  const auto clean = b.out;
  for (int h = 0; h < s.kv_heads; ++h) {
    b.k[b.CacheAt(0, 77, h) + 5] = std::nanf("");
    b.v[b.CacheAt(0, 77, h) + 5] = INFINITY;
  }
  fn(b.Params(), {});
  EXPECT_EQ(std::memcmp(b.out.data(), clean.data(), sizeof(float) * 77 * s.q_heads * s.head_dim), 0);
  EXPECT_TRUE(std::isnan(b.out[77 * s.q_heads * s.head_dim]));
}

TEST_P(Attention, LargeScoresDoNotOverflow) {
  const auto fn = Get<PagedAttentionFn>(OpId::kPagedAttention);
  Batch b({3, 1, 64, 16}, {{200, 3}}, {4}, 1);
  for (float& x : b.q) x *= 100.0f;
  fn(b.Params(), {});
  EXPECT_LT(MaxError(b.out, b.Reference()), 2e-4);  // scores near 1000: float32 keeps 6e-5 of them
}

TEST_P(Attention, RefusesLengthsOutsideTheBlockTable) {
  const auto fn = Get<PagedAttentionFn>(OpId::kPagedAttention);
  Batch b({2, 1, 16, 16}, {{20, 4}}, {1}, 1);
  b.seq_len[0] = 3;
  EXPECT_THROW(fn(b.Params(), {}), InternalError);
  b.seq_len[0] = b.max_blocks * 16 + 1;
  EXPECT_THROW(fn(b.Params(), {}), InternalError);
}

FASTLLM_INSTANTIATE_ARMS(Attention);

}  // namespace
}  // namespace fastllm::ops
