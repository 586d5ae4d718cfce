// The linear over 16-bit weights against float64 on the very operands that the contract names, for every arm, and the
// promise that a row's bits depend on nothing but the row. Weights are packed by the code that loads checkpoints.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "ops/contract/half_linear.h"
#include "runtime/quant/pack_half.h"
#include "support.h"

namespace fastllm::ops {
namespace {

using runtime::TensorInfo;
using runtime::WeightType;

WeightType Stored(DType type) { return type == DType::kBF16 ? WeightType::kBF16 : WeightType::kF16; }

// A packed matrix and its values, which come from the reader of weight files.
struct Packed {
  std::vector<uint16_t> bits;  // [n, k]
  std::vector<uint16_t> memory;
  std::vector<float> values;
  HalfWeight weight;
};

// Random numbers of magnitude 2^-6 to 2^2, both signs, in bits of either type.
Packed MakePacked(DType type, int32_t n, int32_t k, uint64_t seed) {
  Packed p;
  std::mt19937_64 rng(seed);
  const int mantissa = type == DType::kBF16 ? 7 : 10;
  const int bias = type == DType::kBF16 ? 127 : 15;
  for (int64_t i = 0; i < int64_t{n} * k; ++i) {
    const auto exponent = static_cast<uint16_t>(bias - 6 + rng() % 9);
    p.bits.push_back(static_cast<uint16_t>((rng() & 0x8000) | exponent << mantissa | (rng() & ((1u << mantissa) - 1))));
  }
  TensorInfo info{"w", {n, k}, Stored(type), reinterpret_cast<const uint8_t*>(p.bits.data()), p.bits.size() * 2};
  p.values.resize(p.bits.size());
  runtime::DequantizeRows(info, 0, n, p.values.data());
  p.memory.assign(HalfBytes(n, k) / 2 + 32, 0);
  auto* data = p.memory.data() + (64 - reinterpret_cast<uintptr_t>(p.memory.data()) % 64) % 64 / 2;
  const int64_t middle = HalfPanels(n) / 2;  // in two pieces, as two threads would
  runtime::PackHalfPanels(info, runtime::WholeOf(info), 0, middle, data);
  runtime::PackHalfPanels(info, runtime::WholeOf(info), middle, HalfPanels(n), data);
  p.weight = {data, n, k, type};
  return p;
}

float Rounded(float x, DType type) {
  if (type == DType::kF16) return x;
  auto bits = std::bit_cast<uint32_t>(x);
  bits += 0x7FFF + (bits >> 16 & 1);
  return std::bit_cast<float>(bits & 0xFFFF0000u);
}

class HalfLinear : public ArmTest {
 protected:
  std::vector<float> Run(const std::vector<float>& x, const std::vector<HalfWeight>& parts, const float* bias,
                         int32_t rows, int32_t threads = 2) {
    HalfLinearParams p;
    p.parts = parts.data();
    p.num_parts = static_cast<int32_t>(parts.size());
    p.k = parts[0].k;
    for (const HalfWeight& w : parts) p.n += w.n;
    std::vector<float> out(int64_t{rows} * p.n + 16, -77.0f);
    p.out = out.data();
    p.x = x.data();
    p.bias = bias;
    p.num_rows = rows;
    Get<HalfLinearFn>(OpId::kHalfLinear)(p, OpContext{nullptr, threads});
    for (int i = 0; i < 16; ++i) EXPECT_EQ(out[out.size() - 1 - i], -77.0f) << "written past the end";
    out.resize(out.size() - 16);
    return out;
  }
};

void ExpectNear(const std::vector<float>& out, const std::vector<float>& x, const Packed& w, const float* bias,
                int32_t rows) {
  const int32_t n = w.weight.n, k = w.weight.k;
  for (int32_t t = 0; t < rows; ++t) {
    for (int32_t i = 0; i < n; ++i) {
      double want = bias == nullptr ? 0.0 : bias[i], size = std::abs(want);
      for (int32_t j = 0; j < k; ++j) {
        const double term = double{Rounded(x[t * k + j], w.weight.dtype)} * w.values[i * k + j];
        want += term;
        size += std::abs(term);
      }
      ASSERT_NEAR(out[t * n + i], want, (k + 2) * 6e-8 * size)
          << WeightTypeName(Stored(w.weight.dtype)) << ", " << rows << " rows, n " << n << ", k " << k << ", element "
          << t << "," << i;
    }
  }
}

TEST_P(HalfLinear, EqualsFloat64OverShapes) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const int32_t n : {1, 15, 16, 17, 64, 83}) {
      for (const int32_t k : {1, 2, 31, 32, 33, 100, 577}) {
        const Packed w = MakePacked(type, n, k, 7 + n);
        const auto bias = RandomNormal(n, 3);
        for (const int32_t rows : {1, 2, 3, 4, 5, 7, 16, 17, 33, 70}) {
          const auto x = RandomNormal(int64_t{rows} * k, 100 + rows);
          const float* b = rows % 2 == 0 ? bias.data() : nullptr;
          ExpectNear(Run(x, {w.weight}, b, rows), x, w, b, rows);
        }
      }
    }
  }
}

TEST_P(HalfLinear, BitsOfARowDoNotDependOnItsMatesOrThreads) {
  constexpr int32_t kRows = 133, kK = 4000;  // a block of rows is 48 at this k
  const Packed a = MakePacked(DType::kBF16, 83, kK, 21), b = MakePacked(DType::kF16, 17, kK, 22),
               c = MakePacked(DType::kBF16, 48, kK, 23);
  const std::vector<HalfWeight> parts = {a.weight, b.weight, c.weight};
  const auto x = RandomNormal(int64_t{kRows} * kK, 24);
  const auto bias = RandomNormal(83 + 17 + 48, 25);
  const auto all = Run(x, parts, bias.data(), kRows, 3);
  const int64_t n = static_cast<int64_t>(all.size()) / kRows;
  EXPECT_EQ(std::memcmp(all.data(), Run(x, parts, bias.data(), kRows, 1).data(), all.size() * 4), 0);
  for (const int32_t count : {1, 2, 6, 16, 31}) {
    for (int32_t t = 0; t + count <= kRows; t += 29) {
      const std::vector<float> some(x.begin() + int64_t{t} * kK, x.begin() + int64_t{t + count} * kK);
      const auto got = Run(some, parts, bias.data(), count, 1 + t % 3);
      ASSERT_EQ(std::memcmp(got.data(), all.data() + t * n, got.size() * 4), 0) << count << " rows from " << t;
    }
  }
}

// Where products are exact and sums are taken in order, arms agree to the bit; pairs of instructions that add both
// products of a pair at once need not.
TEST_P(HalfLinear, TheArmsThatWidenGiveTheBitsOfThePlainArm) {
  OpTable plain;
  RegisterCpuOps(plain, CpuIsa::kPlain);
  const auto fn = plain.Resolve<HalfLinearFn>({OpId::kHalfLinear, Device::kCpu, DType::kF32}).value();
  constexpr int32_t kRows = 31, kN = 45, kK = 768;
  for (const DType type : {DType::kBF16, DType::kF16}) {
    if (type == DType::kBF16 && GetParam() > CpuIsa::kAvx512Vnni) continue;
    const Packed w = MakePacked(type, kN, kK, 11);
    const auto x = RandomNormal(int64_t{kRows} * kK, 12, 3.0f);
    const auto got = Run(x, {w.weight}, nullptr, kRows);
    std::vector<float> want(got.size());
    fn({want.data(), x.data(), &w.weight, nullptr, 1, kRows, kN, kK}, OpContext{});
    EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * 4), 0) << WeightTypeName(Stored(type));
  }
}

TEST_P(HalfLinear, ABadRowSpoilsOnlyItself) {
  constexpr int32_t kRows = 21, kN = 20, kK = 70;
  for (const DType type : {DType::kBF16, DType::kF16}) {
    const Packed w = MakePacked(type, kN, kK, 31);
    ExpectABadRowSpoilsOnlyItself(kRows, kN, kK, [&](const auto& x) { return Run(x, {w.weight}, nullptr, kRows); });
  }
}

TEST_P(HalfLinear, EmbeddingRowsAreTheStoredValues) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    constexpr int32_t kN = 37, kK = 51;
    const Packed w = MakePacked(type, kN, kK, 41);
    const std::vector<int32_t> ids = {36, 0, 16, 15, 36};
    std::vector<float> out(ids.size() * kK);
    Get<HalfEmbeddingFn>(OpId::kHalfEmbedding)({out.data(), w.weight, ids.data(), 5}, OpContext{nullptr, 2});
    for (size_t t = 0; t < ids.size(); ++t) {
      for (int32_t i = 0; i < kK; ++i) ASSERT_EQ(out[t * kK + i], w.values[int64_t{ids[t]} * kK + i]);
    }
  }
}

TEST_P(HalfLinear, RefusesIdsAndPartsThatDoNotFit) {
  const Packed w = MakePacked(DType::kBF16, 16, 64, 51);
  const int32_t id = 16;
  std::vector<float> out(64), x(32);
  EXPECT_ANY_THROW(Get<HalfEmbeddingFn>(OpId::kHalfEmbedding)({out.data(), w.weight, &id, 1}, OpContext{}));
  EXPECT_ANY_THROW(
      Get<HalfLinearFn>(OpId::kHalfLinear)({out.data(), x.data(), &w.weight, nullptr, 1, 1, 16, 32}, OpContext{}));
}

FASTLLM_INSTANTIATE_ARMS(HalfLinear);

}  // namespace
}  // namespace fastllm::ops
