#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>

#include <gtest/gtest.h>

#include "core/base/check.h"
#include "runtime/weights/test_files.h"

namespace fastllm::runtime {
namespace {

constexpr WeightType kAllTypes[] = {WeightType::kF32,  WeightType::kF16,  WeightType::kBF16, WeightType::kQ8_0,
                                    WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ5_0, WeightType::kQ5_1,
                                    WeightType::kQ2_K, WeightType::kQ3_K, WeightType::kQ4_K, WeightType::kQ5_K,
                                    WeightType::kQ6_K};

// A fixture of make_fixtures.py: blocks and the values an independent reader finds in them.
struct Fixture {
  std::string blocks;
  TensorInfo tensor;  // over blocks
  std::vector<float> expected;
};

Fixture LoadFixture(WeightType type) {
  const std::string path = std::string(FASTLLM_WEIGHTS_FIXTURES) + "/" + WeightTypeName(type) + ".bin";
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  uint32_t head[3] = {};
  if (bytes.size() < sizeof(head)) throw std::runtime_error("cannot read " + path);
  std::memcpy(head, bytes.data(), sizeof(head));
  const size_t values = size_t{head[0]} * head[1];
  if (bytes.size() != sizeof(head) + head[2] + values * sizeof(float)) throw std::runtime_error("size of " + path);
  Fixture fixture;
  fixture.blocks = bytes.substr(sizeof(head), head[2]);
  fixture.expected.resize(values);
  std::memcpy(fixture.expected.data(), bytes.data() + sizeof(head) + head[2], values * sizeof(float));
  fixture.tensor.name = WeightTypeName(type);
  fixture.tensor.shape = {head[0], head[1]};
  fixture.tensor.type = type;
  fixture.tensor.nbytes = head[2];
  return fixture;
}

class DequantizeTest : public ::testing::TestWithParam<WeightType> {};

// Same bits, whatever the address of the blocks, for the whole tensor and for every range of rows.
TEST_P(DequantizeTest, EqualsFixtureBitForBit) {
  Fixture fixture = LoadFixture(GetParam());
  TensorInfo& tensor = fixture.tensor;
  ASSERT_EQ(tensor.numel() / WeightBlockElements(GetParam()) * WeightBlockBytes(GetParam()),
            static_cast<int64_t>(tensor.nbytes));
  for (size_t shift : {0, 1}) {
    const std::string moved = std::string(shift, '\0') + fixture.blocks;
    tensor.data = reinterpret_cast<const uint8_t*>(moved.data()) + shift;
    for (int64_t begin = 0; begin < tensor.shape[0]; ++begin) {
      for (int64_t end = begin + 1; end <= tensor.shape[0]; ++end) {
        std::vector<float> out(static_cast<size_t>((end - begin) * tensor.shape[1]));
        DequantizeRows(tensor, begin, end, out.data());
        for (size_t i = 0; i < out.size(); ++i) {
          const float want = fixture.expected[static_cast<size_t>(begin * tensor.shape[1]) + i];
          ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(want))
              << "rows " << begin << " to " << end << ", value " << i << ": " << out[i] << " for " << want;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, DequantizeTest, ::testing::ValuesIn(kAllTypes),
                         [](const auto& param_info) { return std::string(WeightTypeName(param_info.param)); });

// All 65,536 halves against their definition: (-1)^sign * 2^(exponent - 15) * 1.mantissa.
TEST(DequantizeTest, EveryHalf) {
  std::string bytes;
  for (uint32_t bits = 0; bits < 65536; ++bits) bytes += testing::Raw(static_cast<uint16_t>(bits));
  const TensorInfo tensor{"h", {65536}, WeightType::kF16, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
  const std::vector<float> values = testing::Values(tensor);
  for (int bits = 0; bits < 65536; ++bits) {
    const int exponent = bits >> 10 & 31;
    const int mantissa = bits & 1023;
    float want = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                               : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
    if (exponent == 31) want = std::numeric_limits<float>::infinity();
    if (bits & 0x8000) want = -want;
    const float got = values[static_cast<size_t>(bits)];
    if (exponent == 31 && mantissa != 0) {
      ASSERT_TRUE(std::isnan(got)) << bits;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want)) << bits;
    }
  }
}

TEST(DequantizeTest, BlocksByHand) {
  // Q4_1, d = 2, m = -1: byte 0xF0 gives 0 * 2 - 1 in the first half and 15 * 2 - 1 in the second.
  const std::string block = testing::Raw(uint16_t{0x4000}) + testing::Raw(uint16_t{0xBC00}) + std::string(16, '\xF0');
  const TensorInfo tensor{"q", {1, 32}, WeightType::kQ4_1, reinterpret_cast<const uint8_t*>(block.data()), 20};
  std::vector<float> want(16, -1.0f);
  want.resize(32, 29.0f);
  EXPECT_EQ(testing::Values(tensor), want);
}

TEST(DequantizeTest, ScalarAndEmptyTensors) {
  const float value = 2.5f;
  const TensorInfo scalar{"s", {}, WeightType::kF32, reinterpret_cast<const uint8_t*>(&value), 4};
  EXPECT_EQ(testing::Values(scalar), std::vector<float>{2.5f});
  const TensorInfo empty{"e", {0, 4}, WeightType::kF32, nullptr, 0};
  EXPECT_TRUE(testing::Values(empty).empty());
}

TEST(DequantizeTest, RowsOutsideTheTensorBreakAnInvariant) {
  Fixture fixture = LoadFixture(WeightType::kQ8_0);
  fixture.tensor.data = reinterpret_cast<const uint8_t*>(fixture.blocks.data());
  std::vector<float> out(fixture.expected.size() * 2);
  EXPECT_THROW(DequantizeRows(fixture.tensor, -1, 1, out.data()), InternalError);
  EXPECT_THROW(DequantizeRows(fixture.tensor, 2, 1, out.data()), InternalError);
  EXPECT_THROW(DequantizeRows(fixture.tensor, 0, fixture.tensor.shape[0] + 1, out.data()), InternalError);
  TensorInfo flat = fixture.tensor;
  flat.shape = {flat.numel()};
  EXPECT_THROW(DequantizeRows(flat, 0, 33, out.data()), InternalError);  // ends within a block
  DequantizeRows(flat, 32, 64, out.data());
  EXPECT_EQ(out[0], fixture.expected[32]);
}

// All codes: sign, 4 bits of exponent with a bias of 7, 3 of mantissa; 0x7f and 0xff are NaN.
TEST(Dequantize, EightBitFloats) {
  std::string codes(256, '\0');
  for (int i = 0; i < 256; ++i) codes[i] = static_cast<char>(i);
  const TensorInfo t{"x", {16, 16}, WeightType::kF8E4M3, reinterpret_cast<const uint8_t*>(codes.data()), codes.size()};
  std::vector<float> got(224);
  DequantizeRows(t, 1, 15, got.data());
  EXPECT_EQ(got[0x10 - 16], 0x1p-5f);
  EXPECT_EQ(got[0x38 - 16], 1.0f);
  EXPECT_EQ(got[0x3D - 16], 1.625f);
  EXPECT_EQ(got[0x7E - 16], 448.0f);
  EXPECT_TRUE(std::isnan(got[0x7F - 16]));
  EXPECT_EQ(got[0x81 - 16], -0x1p-9f);
  EXPECT_EQ(got[0xB8 - 16], -1.0f);
}

}  // namespace
}  // namespace fastllm::runtime
