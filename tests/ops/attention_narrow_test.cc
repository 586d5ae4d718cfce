// Attention and cache writes with a KV cache of 16-bit floats.
#include <algorithm>
#include <bit>
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

// A multiple of 1/16 below 8: exact in all three types.
float Coarse(float x) { return std::clamp(std::round(x * 16.0f), -127.0f, 127.0f) / 16.0f; }

uint16_t Bits(float x, DType type) {
  if (std::isnan(x)) return 0x7FFF;
  if (type == DType::kBF16) return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);
  if (x == 0.0f) return 0;
  int exponent;
  const float fraction = std::frexp(std::abs(x), &exponent);  // [0.5, 1)
  const auto mantissa = static_cast<uint16_t>(std::lround(fraction * 2048.0f) - 1024);
  return static_cast<uint16_t>((x < 0 ? 0x8000 : 0) | (exponent + 14) << 10 | mantissa);
}

// The batch with a cache of the type; the float cache of `b` becomes coarse, so that both hold the same values.
struct Narrow {
  std::vector<uint16_t> k, v;
  PagedAttentionParams params;

  Narrow(Batch& b, DType type) {
    for (auto* from : {&b.k, &b.v}) {
      auto& to = from == &b.k ? k : v;
      for (float& x : *from) {
        if (!std::isnan(x)) x = Coarse(x);
        to.push_back(Bits(x, type));
      }
    }
    params = b.Params();
    params.cache.k = k.data();
    params.cache.v = v.data();
    params.cache.dtype = type;
  }
};

class NarrowCache : public ArmTest {
 protected:
  // Products of bfloat16 round queries and weights to 8 bits; the other arms compute in float32.
  double Bound(DType type) const { return type == DType::kBF16 && GetParam() >= CpuIsa::kAvx512Bf16 ? 3e-2 : 4e-6; }
};

TEST_P(NarrowCache, MatchesFloat64OverShapesAndMixes) {
  const auto fn = Get<PagedAttentionFn>(OpId::kPagedAttention, kFeatureGqa);
  for (const DType type : {DType::kF16, DType::kBF16}) {
    ForShapesAndMixes(/*narrow=*/true, [&](const Shape& s, const std::vector<Seq>& mix) {
      std::vector<int> ids(mix.size());
      std::iota(ids.begin(), ids.end(), 1);
      Batch b(s, mix, ids, 5);
      const Narrow narrow(b, type);
      fn(narrow.params, {nullptr, 3});
      EXPECT_LT(MaxError(b.out, b.Reference()), Bound(type))
          << s.q_heads << "/" << s.kv_heads << " dim " << s.head_dim << " seqs " << mix.size();
    });
  }
}

TEST_P(NarrowCache, BitsDoNotDependOnChunkingMatesOrThreads) {
  const auto fn = Get<PagedAttentionFn>(OpId::kPagedAttention, kFeatureGqa);
  constexpr int kLen = 300;
  // Groups of 1 to 5: the few rows of a decoding sequence may be computed in another way than a prompt's.
  for (const Shape s : {Shape{9, 3, 64, 16}, {5, 1, 40, 8}, {2, 2, 96, 16}, {4, 2, 128, 16}, {4, 1, 32, 16}}) {
    const size_t row = static_cast<size_t>(s.q_heads) * s.head_dim;
    for (const DType type : {DType::kF16, DType::kBF16}) {
      Batch whole(s, {{kLen, kLen}}, {7}, 3);
      fn(Narrow(whole, type).params, {nullptr, 1});
      for (const int chunk : {64, 77, 299}) {
        for (int done = 0; done < kLen; done += chunk) {
          const int n = std::min(chunk, kLen - done);
          Batch b(s, {{33, 7}, {done + n, n}, {90, 1}}, {50, 7, 51}, done + 1);
          fn(Narrow(b, type).params, {nullptr, 1 + chunk % 3});
          ASSERT_EQ(std::memcmp(b.out.data() + 7 * row, whole.out.data() + done * row, n * row * sizeof(float)), 0)
              << "chunk " << chunk << " at " << done;
        }
      }
      for (const int at : {1, 63, 64, 65, 150, 256, 257, 300}) {  // decode rows
        Batch b(s, {{at, 1}}, {7}, at);
        fn(Narrow(b, type).params, {nullptr, 2});
        ASSERT_EQ(std::memcmp(b.out.data(), whole.out.data() + (at - 1) * row, row * sizeof(float)), 0) << at;
      }
    }
  }
}

// Expected bits worked out by hand from the formats.
TEST_P(NarrowCache, WritesRoundToNearestEven) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {
      1.0f,     -2.5f,    0.0f,           -0.0f,          1.0f + 0x1p-11f, 1.0f + 0x3p-11f,
      65519.0f, 65520.0f, 0x1p-24f,       0x1p-25f,       0x3p-25f,        0x1.8p-15f,
      inf,      -inf,     1.0f + 0x1p-8f, 1.0f + 0x3p-8f, 3.3895e38f,      1.1754944e-38f};
  const std::vector<uint16_t> f16 = {0x3C00, 0xC100, 0,      0x8000, 0x3C00, 0x3C02, 0x7BFF, 0x7C00, 1,
                                     0,      2,      0x0300, 0x7C00, 0xFC00, 0x3C04, 0x3C0C, 0x7C00, 0};
  const std::vector<uint16_t> bf16 = {0x3F80, 0xC020, 0,      0x8000, 0x3F80, 0x3F80, 0x4780, 0x4780, 0x3380,
                                      0x3300, 0x33C0, 0x3840, 0x7F80, 0xFF80, 0x3F80, 0x3F82, 0x7F7F, 0x0080};
  const auto fn = Get<KvWriteFn>(OpId::kKvWrite);
  const auto dim = static_cast<int32_t>(values.size());
  for (const DType type : {DType::kF16, DType::kBF16}) {
    std::vector<uint16_t> k(2 * dim, 0xAAAA), v(2 * dim, 0xAAAA);
    std::vector<float> backwards(values.rbegin(), values.rend());
    const int64_t slot = 1;
    KvWriteParams p;
    p.cache = {k.data(), v.data(), 1, 1, 2, dim, type};
    p.k = values.data();
    p.v = backwards.data();
    p.slot_mapping = &slot;
    p.num_tokens = 1;
    fn(p, {});
    const auto& want = type == DType::kF16 ? f16 : bf16;
    for (int32_t i = 0; i < dim; ++i) {
      EXPECT_EQ(k[dim + i], want[i]) << values[i];
      EXPECT_EQ(v[dim + i], want[dim - 1 - i]);
      EXPECT_EQ(k[i], 0xAAAA);
    }
    const std::vector<float> nan(dim, std::nanf(""));
    p.k = nan.data();
    fn(p, {});
    const uint16_t exponent = type == DType::kF16 ? 0x7C00 : 0x7F80;
    for (int32_t i = 0; i < dim; ++i) {
      EXPECT_EQ(k[dim + i] & exponent, exponent);
      EXPECT_NE(k[dim + i] & static_cast<uint16_t>(~exponent & 0x7FFF), 0);
    }
  }
}

FASTLLM_INSTANTIATE_ARMS(NarrowCache);

}  // namespace
}  // namespace fastllm::ops
