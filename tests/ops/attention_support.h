// A ragged batch over a paged cache with its float64 answer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "ops/contract/attention.h"
#include "support.h"

namespace fastllm::ops {

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
  int window = 0;
  float softcap = 0.0f;
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
    p.window = window;
    p.logit_softcap = softcap;
    return p;
  }

  // Takes away what no row's window holds: entries of the block table point outside the cache.
  void DropUnseenBlocks() {
    for (size_t s = 0; s < seqs.size(); ++s) {
      const int first = std::max(0, seqs[s].seq_len - seqs[s].query_len - window + 1);
      for (int b = 0; (b + 1) * shape.block_size <= first; ++b) table[s * max_blocks + b] = 1 << 30;
    }
  }

  std::vector<double> Reference() const {
    std::vector<double> want(out.size());
    const int dim = shape.head_dim, group = shape.q_heads / shape.kv_heads;
    for (size_t s = 0; s < seqs.size(); ++s) {
      for (int r = 0; r < seqs[s].query_len; ++r) {
        const int last = seqs[s].seq_len - seqs[s].query_len + r;
        for (int h = 0; h < shape.q_heads; ++h) {
          const size_t token = query_start[s] + r;
          const int first = window > 0 ? std::max(0, last - window + 1) : 0;
          std::vector<double> w(last + 1, -INFINITY);
          for (int j = first; j <= last; ++j) {
            w[j] = 0.0;
            for (int d = 0; d < dim; ++d) {
              w[j] += static_cast<double>(q[token * q_stride + h * dim + d]) * k[CacheAt(s, j, h / group) + d];
            }
            w[j] /= std::sqrt(static_cast<double>(dim));
            if (softcap > 0.0f) w[j] = softcap * std::tanh(w[j] / softcap);
          }
          const double max = *std::max_element(w.begin(), w.end());
          double sum = 0;
          for (double& x : w) sum += x = std::exp(x - max);
          for (int j = first; j <= last; ++j) {
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

// Shapes and batches of every kind that the arms take differently. `narrow`: those of caches of two bytes an element,
// whose head_dim is even.
inline void ForShapesAndMixes(bool narrow, const std::function<void(const Shape&, const std::vector<Seq>&)>& check) {
  std::vector<std::vector<Seq>> mixes = {
      {{1, 1}}, {{130, 1}}, {{40, 40}}, {{70, 33}, {1, 1}, {65, 1}, {64, 64}, {129, 2}, {5, 0}, {20, 19}}};
  std::vector<Shape> shapes = {{1, 1, 16, 1},   {2, 1, 24, 8},  {9, 3, 64, 16},  {4, 4, 100, 32},
                               {9, 1, 128, 16}, {5, 1, 256, 8}, {14, 2, 80, 16}, {71, 1, 64, 16}};
  if (narrow) {
    mixes.push_back({{700, 2}});
    shapes.push_back({8, 2, 18, 16});
  } else {
    shapes.push_back({8, 2, 17, 16});
    shapes.push_back({6, 3, 3, 3});
  }
  for (const Shape& s : shapes) {
    for (const auto& mix : mixes) check(s, mix);
  }
}

}  // namespace fastllm::ops
