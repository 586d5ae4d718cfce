// Damaged files: each opens with tensors inside the file, or is refused; nothing reads past the bytes given. The
// parsers run on heap copies of the exact size, where the address sanitizer sees any read beyond.
#include <memory>
#include <random>

#include <gtest/gtest.h>

#include "runtime/weights/gguf.h"
#include "runtime/weights/gguf_header.h"
#include "runtime/weights/safetensors.h"
#include "runtime/weights/safetensors_header.h"
#include "runtime/weights/test_files.h"

namespace fastllm::runtime {
namespace {

// Every tensor lies in data[0, size), and all its values can be read.
void ExpectInside(const std::vector<TensorInfo>& tensors, const uint8_t* data, size_t size) {
  for (const TensorInfo& tensor : tensors) {
    ASSERT_GE(tensor.data, data);
    ASSERT_LE(tensor.nbytes, size);
    ASSERT_LE(tensor.data - data, static_cast<ptrdiff_t>(size - tensor.nbytes));
    ASSERT_EQ(tensor.numel() / WeightBlockElements(tensor.type) * WeightBlockBytes(tensor.type),
              static_cast<int64_t>(tensor.nbytes));
    ASSERT_EQ(testing::Values(tensor).size(), static_cast<size_t>(tensor.numel()));
  }
}

template <typename Parse>
Status Check(Parse parse, const std::string& bytes) {
  auto copy = std::make_unique<uint8_t[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), copy.get());
  auto header = parse(copy.get(), bytes.size());
  if (header.ok()) {
    ExpectInside(header->tensors, copy.get(), bytes.size());
  } else {
    EXPECT_FALSE(header.status().message().empty());
  }
  return header.status();
}

// Alters 1 to 4 bytes of [0, header) in each of 2,000 rounds; returns how many files still parsed.
template <typename Parse>
int FlipBytes(Parse parse, const std::string& good, size_t header) {
  std::mt19937 random(12345);
  int opened = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    for (uint32_t flips = 1 + random() % 4; flips > 0; --flips) {
      bytes[random() % header] ^= static_cast<char>(1 + random() % 255);
    }
    opened += Check(parse, bytes).ok();
  }
  return opened;
}

TEST(CorruptionTest, GgufCutAnywhereIsDataLoss) {
  const std::string good = testing::SmallGguf().Build();
  ASSERT_TRUE(Check(ParseGguf, good).ok());
  testing::TempDir dir;
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_EQ(Check(ParseGguf, good.substr(0, size)).code(), StatusCode::kDataLoss) << "cut at " << size;
  }
  for (size_t size = 0; size < good.size(); size += 16) {
    const Status status = GgufFile::Open(dir.Write("m.gguf", good.substr(0, size))).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << "cut at " << size;
    EXPECT_NE(status.message().find("m.gguf"), std::string::npos) << status.message();
  }
}

TEST(CorruptionTest, SafetensorsCutAnywhereIsDataLoss) {
  const std::string good = testing::SmallSafetensors();
  ASSERT_TRUE(Check(ParseSafetensors, good).ok());
  testing::TempDir dir;
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_EQ(Check(ParseSafetensors, good.substr(0, size)).code(), StatusCode::kDataLoss) << "cut at " << size;
  }
  for (size_t size = 0; size < good.size(); size += 12) {
    const Status status = SafetensorsSource::Open(dir.Write("m.safetensors", good.substr(0, size))).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << "cut at " << size;
    EXPECT_NE(status.message().find("m.safetensors"), std::string::npos) << status.message();
  }
}

TEST(CorruptionTest, GgufFlippedBytes) {
  const testing::GgufBuilder builder = testing::SmallGguf();
  // Flips within names and numbers leave a valid file, flips of lengths and types do not: both must happen.
  const int opened = FlipBytes(ParseGguf, builder.Build(), builder.Header().size());
  EXPECT_GT(opened, 50);
  EXPECT_LT(opened, 1500);
}

TEST(CorruptionTest, SafetensorsFlippedBytes) {
  const std::string good = testing::SmallSafetensors();
  const int opened = FlipBytes(ParseSafetensors, good, good.size() - 36);
  EXPECT_GT(opened, 10);
  EXPECT_LT(opened, 1500);
}

// Every 8-byte field position of the header set to values that break sums and products.
template <typename Parse>
void SetWords(Parse parse, const std::string& good, size_t header) {
  const uint64_t words[] = {
      0, 1, 31, 0x7FFFFFFF, 0xFFFFFFFF, uint64_t{1} << 61, uint64_t{1} << 63, ~uint64_t{0} - 32, ~uint64_t{0}};
  for (size_t at = 0; at + 8 <= header; ++at) {
    for (uint64_t word : words) {
      std::string bytes = good;
      bytes.replace(at, 8, testing::Raw(word));
      static_cast<void>(Check(parse, bytes));
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(CorruptionTest, GgufExtremeWords) {
  const testing::GgufBuilder builder = testing::SmallGguf();
  SetWords(ParseGguf, builder.Build(), builder.Header().size());
}

TEST(CorruptionTest, SafetensorsExtremeWords) {
  const std::string good = testing::SmallSafetensors();
  SetWords(ParseSafetensors, good, good.size() - 36);
}

}  // namespace
}  // namespace fastllm::runtime
