// Parts of tensors: columns, packed blocks of some rows and columns, and pages that are let go.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "ops/contract/quant_weight.h"
#include "runtime/quant/pack.h"
#include "runtime/weights/mapped_file.h"
#include "runtime/weights/tensor_source.h"
#include "runtime/weights/test_files.h"

namespace fastllm::runtime {
namespace {

// Blocks with arbitrary bytes and small scales, so that every value is finite.
std::vector<uint8_t> Blocks(WeightType type, int64_t count) {
  std::vector<uint8_t> bytes(count * WeightBlockBytes(type));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 + i / 7);
  for (int64_t b = 0; b < count; ++b) {
    const uint16_t scale = 0x2c00 + static_cast<uint16_t>(b);  // about 1/16
    std::memcpy(&bytes[b * WeightBlockBytes(type)], &scale, sizeof(scale));
  }
  return bytes;
}

TensorInfo Tensor(WeightType type, int64_t rows, int64_t cols, const std::vector<uint8_t>& bytes) {
  return {"w", {rows, cols}, type, bytes.data(), bytes.size()};
}

TEST(SlicesTest, ColumnsAreThoseOfTheWholeRows) {
  for (const WeightType type : {WeightType::kF32, WeightType::kBF16, WeightType::kQ8_0, WeightType::kQ4_1}) {
    const int64_t rows = 5, cols = 96, block = WeightBlockElements(type);
    const auto bytes = Blocks(type, rows * cols / block);
    const TensorInfo tensor = Tensor(type, rows, cols, bytes);
    std::vector<float> whole(rows * cols), part(2 * 32);
    DequantizeRows(tensor, 0, rows, whole.data());
    DequantizeColumns(tensor, 2, 4, 32, 64, part.data());
    for (int64_t r = 0; r < 2; ++r) {
      EXPECT_EQ(std::memcmp(&part[r * 32], &whole[(r + 2) * cols + 32], 32 * sizeof(float)), 0) << WeightTypeName(type);
    }
  }
}

TEST(SlicesTest, ABlockIsNotCut) {
  const auto bytes = Blocks(WeightType::kQ8_0, 6);
  const TensorInfo tensor = Tensor(WeightType::kQ8_0, 2, 96, bytes);
  std::vector<float> out(192);
  EXPECT_THROW(DequantizeColumns(tensor, 0, 2, 16, 48, out.data()), InternalError);
  EXPECT_THROW(DequantizeColumns(tensor, 0, 2, 32, 128, out.data()), InternalError);
  EXPECT_THROW(DequantizeColumns(tensor, 0, 3, 32, 64, out.data()), InternalError);
  DequantizeColumns(tensor, 0, 2, 32, 96, out.data());
}

// Rows [16, 40) and columns [32, 96) of a matrix, packed where they lie, are the packing of a copy of them.
TEST(SlicesTest, PackedPartsAreThoseOfACopy) {
  const int64_t rows = 48, cols = 128, block_bytes = WeightBlockBytes(WeightType::kQ4_0);
  const auto bytes = Blocks(WeightType::kQ4_0, rows * cols / 32);
  const int64_t row_bytes = cols / 32 * block_bytes, part_bytes = 2 * block_bytes;
  std::vector<uint8_t> copy;
  for (int64_t r = 16; r < 40; ++r) {
    const auto* from = bytes.data() + r * row_bytes + block_bytes;
    copy.insert(copy.end(), from, from + part_bytes);
  }
  const auto format = ops::QuantFormat::kQ4_0;
  const auto size = static_cast<size_t>(ops::PackedBytes(format, 24, 64));
  std::vector<uint8_t> want(size), got(size);
  PackPanels(format, copy.data(), 24, 64, 0, 2, want.data());
  PackPanels(format, bytes.data() + 16 * row_bytes + block_bytes, 24, 64, 0, 2, got.data(), row_bytes);
  EXPECT_EQ(got, want);
}

// Kilobytes of the mapping at `address` that are in this process's memory.
int64_t ResidentKib(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  std::ostringstream begin;
  begin << std::hex << reinterpret_cast<uintptr_t>(address) << '-';
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.starts_with(begin.str())) found = true;
    if (found && line.starts_with("Rss:")) return std::stoll(line.substr(4));
  }
  return -1;
}

TEST(SlicesTest, PagesThatAreLetGoLeaveTheProcessAndComeBack) {
  constexpr size_t kMib = 1 << 20;
  const testing::TempDir folder;
  std::string content(4 * kMib, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 31 + i / 4096);
  auto file = MappedFile::Open(folder.Write("weights", content));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(std::memcmp(file->data(), content.data(), content.size()), 0);
  EXPECT_EQ(ResidentKib(file->data()), 4096);
  MappedFile::Release(file->data() + kMib + 100, 2 * kMib);
  // Pages that it holds in part stay; a kernel that had mapped the file by huge pages lets more go.
  EXPECT_LE(ResidentKib(file->data()), 2052);
  EXPECT_EQ(std::memcmp(file->data(), content.data(), content.size()), 0);
}

}  // namespace
}  // namespace fastllm::runtime
