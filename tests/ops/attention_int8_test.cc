// Attention and cache writes with a KV cache of 8-bit integers and a scale for each token and head.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "attention_support.h"
#include "ops/contract/attention.h"
#include "ops/contract/kv_cache.h"
#include "support.h"

namespace fastllm::ops {
namespace {

// The batch with an int8 cache, rounded in double here; the float cache of `b` then holds the same values.
struct Int8Batch {
  std::vector<int8_t> k, v;
  std::vector<float> k_scales, v_scales;
  PagedAttentionParams params;

  explicit Int8Batch(Batch& b) {
    Round(b.k, b.shape.head_dim, &k, &k_scales);
    Round(b.v, b.shape.head_dim, &v, &v_scales);
    params = b.Params();
    params.cache.k = k.data();
    params.cache.v = v.data();
    params.cache.k_row_scales = k_scales.data();
    params.cache.v_row_scales = v_scales.data();
    params.cache.dtype = DType::kI8;
  }

  // Rows that no sequence owns are NaN: their scale is.
  static void Round(std::vector<float>& values, int dim, std::vector<int8_t>* q, std::vector<float>* scales) {
    for (size_t row = 0; row < values.size(); row += dim) {
      double amax = 0.0;
      for (int i = 0; i < dim; ++i) amax = std::max(amax, std::abs(double{values[row + i]}));
      const bool owned = !std::isnan(values[row]);
      scales->push_back(owned ? static_cast<float>(amax / 127.0) : std::nanf(""));
      for (int i = 0; i < dim; ++i) {
        q->push_back(owned ? static_cast<int8_t>(std::lround(values[row + i] * 127.0 / amax)) : int8_t{1});
        values[row + i] = scales->back() * q->back();
      }
    }
  }
};

using Int8Cache = ArmTest;

TEST_P(Int8Cache, MatchesFloat64OverShapesAndMixes) {
  const auto fn = Get<PagedAttentionFn>(OpId::kPagedAttention, kFeatureGqa);
  const std::vector<Seq> mixes[] = {
      {{1, 1}}, {{130, 1}}, {{40, 40}}, {{70, 33}, {1, 1}, {65, 1}, {64, 64}, {129, 2}, {5, 0}, {20, 19}}, {{700, 2}}};
  for (const Shape s :
       {Shape{1, 1, 16, 1}, {2, 1, 24, 8}, {9, 3, 64, 16}, {4, 4, 100, 32}, {5, 1, 256, 8}, {8, 2, 18, 16}}) {
    for (const auto& mix : mixes) {
      std::vector<int> ids(mix.size());
      std::iota(ids.begin(), ids.end(), 1);
      Batch b(s, mix, ids, 5);
      const Int8Batch narrow(b);
      fn(narrow.params, {nullptr, 3});
      EXPECT_LT(MaxError(b.out, b.Reference()), 4e-6)
          << s.q_heads << "/" << s.kv_heads << " dim " << s.head_dim << " seqs " << mix.size();
    }
  }
}

TEST_P(Int8Cache, BitsDoNotDependOnChunkingMatesOrThreads) {
  const auto fn = Get<PagedAttentionFn>(OpId::kPagedAttention, kFeatureGqa);
  constexpr int kLen = 300;
  const Shape s{9, 3, 64, 16};
  const size_t row = static_cast<size_t>(s.q_heads) * s.head_dim;
  Batch whole(s, {{kLen, kLen}}, {7}, 3);
  fn(Int8Batch(whole).params, {nullptr, 1});
  for (const int chunk : {64, 77, 299}) {
    for (int done = 0; done < kLen; done += chunk) {
      const int n = std::min(chunk, kLen - done);
      Batch b(s, {{33, 7}, {done + n, n}, {90, 1}}, {50, 7, 51}, done + 1);
      fn(Int8Batch(b).params, {nullptr, 1 + chunk % 3});
      ASSERT_EQ(std::memcmp(b.out.data() + 7 * row, whole.out.data() + done * row, n * row * sizeof(float)), 0)
          << "chunk " << chunk << " at " << done;
    }
  }
}

// Against the rule of kv_cache.h, evaluated in double.
TEST_P(Int8Cache, WritesRoundToNearestEvenWithAScaleForEachHead) {
  constexpr int kHeads = 3, kDim = 21, kBlock = 4, kBlocks = 2, kTokens = 3;
  auto k = RandomNormal(kTokens * kHeads * kDim, 1), v = RandomNormal(kTokens * kHeads * kDim, 2, 30.0f);
  const std::vector<float> exact = {127.0f, -127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 3.49f};  // scale 1: ties show
  std::fill_n(k.begin(), kDim, 0.0f);
  std::copy(exact.begin(), exact.end(), k.begin());
  std::fill_n(v.begin() + kDim, kDim, 0.0f);  // a head of zeros
  v[2 * kDim + 3] = std::nanf("");            // and one with a NaN
  v[kHeads * kDim + 5] = std::numeric_limits<float>::infinity();
  std::vector<int8_t> kc(kBlocks * kHeads * kBlock * kDim, 99), vc(kc.size(), 99);
  std::vector<float> ks(kBlocks * kHeads * kBlock, -7.0f), vs(ks.size(), -7.0f);
  const std::vector<int64_t> slots = {6, 1, -1};
  KvWriteParams p;
  p.cache = {kc.data(), vc.data(), kBlocks, kHeads, kBlock, kDim, DType::kI8};
  p.cache.k_row_scales = ks.data();
  p.cache.v_row_scales = vs.data();
  p.k = k.data();
  p.v = v.data();
  p.slot_mapping = slots.data();
  p.k_stride = p.v_stride = kHeads * kDim;
  p.num_tokens = kTokens;
  Get<KvWriteFn>(OpId::kKvWrite)(p, {nullptr, 2});
  for (const bool of_k : {true, false}) {
    const auto& x = of_k ? k : v;
    const auto& q = of_k ? kc : vc;
    const auto& scales = of_k ? ks : vs;
    for (int t = 0; t < 2; ++t) {
      for (int h = 0; h < kHeads; ++h) {
        const int64_t at = (slots[t] / kBlock * kHeads + h) * kBlock + slots[t] % kBlock;
        const float* row = &x[(t * kHeads + h) * kDim];
        double amax = 0.0;
        bool finite = true;
        for (int d = 0; d < kDim; ++d) finite &= std::isfinite(row[d]);
        for (int d = 0; d < kDim; ++d) amax = std::max(amax, std::abs(double{row[d]}));
        if (!finite) {
          EXPECT_FALSE(std::isfinite(scales[at]) && std::isfinite(scales[at] * static_cast<float>(q[at * kDim])));
          continue;
        }
        EXPECT_FLOAT_EQ(scales[at], static_cast<float>(amax / 127.0));
        for (int d = 0; d < kDim; ++d) {
          const double want = amax == 0.0 ? 0.0 : std::nearbyint(double{row[d]} * (127.0 / amax));
          EXPECT_EQ(q[at * kDim + d], want) << "token " << t << " head " << h << " element " << d;
        }
      }
    }
  }
  EXPECT_EQ(std::count(ks.begin(), ks.end(), -7.0f), static_cast<int64_t>(ks.size()) - 2 * kHeads);
  EXPECT_EQ(std::count(kc.begin(), kc.end(), 99), static_cast<int64_t>(kc.size()) - 2 * kHeads * kDim);
}

FASTLLM_INSTANTIATE_ARMS(Int8Cache);

}  // namespace
}  // namespace fastllm::ops
