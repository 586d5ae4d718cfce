#include <filesystem>
#include <functional>
#include <limits>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "runtime/weights/gguf.h"
#include "runtime/weights/test_files.h"

namespace fastllm::runtime {
namespace {

using testing::GgufArrayPair;
using testing::GgufBuilder;
using testing::GgufPair;
using testing::GgufString;
using testing::Raw;
using testing::SmallGguf;
using testing::TempDir;

Status OpenStatus(const std::string& bytes) {
  TempDir dir;
  return GgufFile::Open(dir.Write("m.gguf", bytes)).status();
}

// The file is refused with this code, and the message has this text.
void ExpectRefused(const GgufBuilder& builder, StatusCode code, const std::string& text) {
  const Status status = OpenStatus(builder.Build());
  EXPECT_EQ(status.code(), code) << status.ToString();
  EXPECT_NE(status.message().find(text), std::string::npos) << status.ToString() << " lacks: " << text;
}

TEST(GgufTest, ReadsTensorsInRowMajorOrder) {
  for (uint32_t version : {2u, 3u}) {
    GgufBuilder builder = SmallGguf();
    builder.version = version;
    TempDir dir;
    auto file = GgufFile::Open(dir.Write("m.gguf", builder.Build()));
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    ASSERT_EQ((*file)->tensors().size(), 3u);
    const TensorInfo* a = (*file)->Find("a");
    ASSERT_NE(a, nullptr);
    EXPECT_EQ(a->shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(a->type, WeightType::kF32);
    EXPECT_EQ(a->nbytes, 24u);
    EXPECT_EQ(testing::Values(*a), (std::vector<float>{0, 1, 2, 3, 4, 5}));
    const TensorInfo* b = (*file)->Find("b");
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(b->shape, (std::vector<int64_t>{2, 32}));
    EXPECT_EQ(b->nbytes, 68u);
    EXPECT_EQ(testing::Values(*b)[0], -16.0f);
    EXPECT_EQ(testing::Values(*b)[63], -30.0f);
    EXPECT_EQ(testing::Values(*(*file)->Find("c")), (std::vector<float>{1, -2, 0.5, 0}));
  }
}

TEST(GgufTest, FindAndGetOfAnAbsentTensor) {
  TempDir dir;
  auto file = GgufFile::Open(dir.Write("m.gguf", SmallGguf().Build()));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->Find("absent"), nullptr);
  EXPECT_EQ((*file)->Get("absent").status().code(), StatusCode::kNotFound);
  EXPECT_NE((*file)->Get("absent").status().message().find("'absent'"), std::string::npos);
  ASSERT_TRUE((*file)->Get("a").ok());
  EXPECT_EQ(*(*file)->Get("a"), (*file)->Find("a"));
}

TEST(GgufTest, ReadsEveryMetadataType) {
  GgufBuilder builder;
  builder.pairs = {
      GgufPair("u8", 0, Raw(uint8_t{200})),
      GgufPair("i8", 1, Raw(int8_t{-5})),
      GgufPair("u16", 2, Raw(uint16_t{60000})),
      GgufPair("i16", 3, Raw(int16_t{-6})),
      GgufPair("u32", 4, Raw(uint32_t{4000000000})),
      GgufPair("i32", 5, Raw(int32_t{-7})),
      GgufPair("f32", 6, Raw(1.5f)),
      GgufPair("true", 7, Raw(uint8_t{1})),
      GgufPair("false", 7, Raw(uint8_t{0})),
      GgufPair("str", 8, GgufString("text")),
      GgufPair("u64", 10, Raw(uint64_t{1} << 62)),
      GgufPair("i64", 11, Raw(std::numeric_limits<int64_t>::min())),
      GgufPair("f64", 12, Raw(0.1)),
      GgufArrayPair("a_u8", 0, 2, Raw(uint8_t{1}) + Raw(uint8_t{255})),
      GgufArrayPair("a_i64", 11, 1, Raw(int64_t{-9})),
      GgufArrayPair("a_bool", 7, 2, Raw(uint8_t{1}) + Raw(uint8_t{0})),
      GgufArrayPair("a_f32", 6, 2, Raw(0.5f) + Raw(-2.0f)),
      GgufArrayPair("a_f64", 12, 1, Raw(0.1)),
      GgufArrayPair("a_str", 8, 2, GgufString("") + GgufString("ab")),
      GgufArrayPair("a_none", 8, 0, ""),
  };
  TempDir dir;
  auto file = GgufFile::Open(dir.Write("m.gguf", builder.Build()));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const GgufMetadata want = {
      {"u8", int64_t{200}},
      {"i8", int64_t{-5}},
      {"u16", int64_t{60000}},
      {"i16", int64_t{-6}},
      {"u32", int64_t{4000000000}},
      {"i32", int64_t{-7}},
      {"f32", 1.5},
      {"true", true},
      {"false", false},
      {"str", std::string("text")},
      {"u64", int64_t{1} << 62},
      {"i64", std::numeric_limits<int64_t>::min()},
      {"f64", 0.1},
      {"a_u8", std::vector<int64_t>{1, 255}},
      {"a_i64", std::vector<int64_t>{-9}},
      {"a_bool", std::vector<int64_t>{1, 0}},
      {"a_f32", std::vector<double>{0.5, -2}},
      {"a_f64", std::vector<double>{0.1}},
      {"a_str", std::vector<std::string>{"", "ab"}},
      {"a_none", std::vector<std::string>{}},
  };
  EXPECT_EQ((*file)->metadata(), want);
  EXPECT_TRUE((*file)->tensors().empty());
}

TEST(GgufTest, HonoursTheAlignmentKey) {
  GgufBuilder builder = SmallGguf();
  builder.pairs.push_back(GgufPair("general.alignment", 4, Raw(uint32_t{128})));
  builder.alignment = 128;
  TempDir dir;
  auto file = GgufFile::Open(dir.Write("m.gguf", builder.Build()));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(testing::Values(*(*file)->Find("c")), (std::vector<float>{1, -2, 0.5, 0}));
}

TEST(GgufTest, RefusesFilesItCannotOpen) {
  TempDir dir;
  EXPECT_EQ(GgufFile::Open(dir.path() + "/none.gguf").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(GgufFile::Open(dir.path()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenStatus("").code(), StatusCode::kDataLoss);
  const std::string fifo = dir.path() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(GgufFile::Open(fifo).status().code(), StatusCode::kInvalidArgument);  // without waiting for a writer
}

TEST(GgufTest, RefusesPreambles) {
  GgufBuilder builder = SmallGguf();
  builder.magic = "GGML";
  ExpectRefused(builder, StatusCode::kDataLoss, "does not start with 'GGUF'");
  builder.magic = "GGUF";
  builder.version = 1;
  ExpectRefused(builder, StatusCode::kUnimplemented, "version 1;");
  builder.version = 4;
  ExpectRefused(builder, StatusCode::kUnimplemented, "version 4;");
  builder.version = 0x03000000;
  ExpectRefused(builder, StatusCode::kUnimplemented, "version 3 in big-endian");
}

TEST(GgufTest, RefusesCounts) {
  const uint64_t huge = std::numeric_limits<uint64_t>::max();
  for (uint64_t count : {huge, huge / 2, uint64_t{1000}}) {
    GgufBuilder builder = SmallGguf();
    builder.tensor_count = count;
    ExpectRefused(builder, StatusCode::kDataLoss, "tensor count " + std::to_string(count));
    builder.tensor_count.reset();
    builder.pair_count = count;
    ExpectRefused(builder, StatusCode::kDataLoss, "metadata count " + std::to_string(count));
  }
}

TEST(GgufTest, RefusesMetadata) {
  const uint64_t huge = std::numeric_limits<uint64_t>::max();
  const struct {
    std::string pair;
    StatusCode code;
    std::string text;
  } cases[] = {
      {GgufPair("k", 13, Raw(0)), StatusCode::kDataLoss, "'k': metadata value type 13 is unknown"},
      {GgufPair("k", 7, Raw(uint8_t{2})), StatusCode::kDataLoss, "bool has the value 2"},
      {GgufPair("k", 10, Raw(huge)), StatusCode::kDataLoss, "past the largest int64"},
      {GgufPair("k", 8, Raw(huge)), StatusCode::kDataLoss, "ends within a metadata string"},
      {GgufPair("k", 8, Raw(huge - 15)), StatusCode::kDataLoss, "ends within a metadata string"},
      {GgufArrayPair("k", 4, huge, ""), StatusCode::kDataLoss, "does not fit"},
      {GgufArrayPair("k", 10, huge / 8 + 1, ""), StatusCode::kDataLoss, "does not fit"},
      {GgufArrayPair("k", 14, 1, ""), StatusCode::kDataLoss, "element type 14 is unknown"},
      {GgufArrayPair("k", 7, 1, Raw(uint8_t{9})), StatusCode::kDataLoss, "bool has the value 9"},
      {GgufArrayPair("k", 9, 1, Raw(uint32_t{4}) + Raw(uint64_t{0})), StatusCode::kUnimplemented, "nested arrays"},
      {GgufPair("llama.eps", 6, Raw(1.0f)), StatusCode::kDataLoss, "'llama.eps' comes twice"},
      {GgufPair("general.alignment", 4, Raw(uint32_t{0})), StatusCode::kDataLoss, "general.alignment is 0"},
      {GgufPair("general.alignment", 4, Raw(uint32_t{48})), StatusCode::kDataLoss, "general.alignment is 48"},
      {GgufPair("general.alignment", 11, Raw(int64_t{1} << 40)), StatusCode::kDataLoss, "power of two below 2^32"},
      {GgufPair("general.alignment", 8, GgufString("32")), StatusCode::kDataLoss, "is not an integer"},
      {GgufPair("split.count", 2, Raw(uint16_t{3})), StatusCode::kUnimplemented, "one of 3 parts"},
  };
  for (const auto& bad : cases) {
    GgufBuilder builder = SmallGguf();
    builder.pairs.push_back(bad.pair);
    ExpectRefused(builder, bad.code, bad.text);
  }
  GgufBuilder one_part = SmallGguf();
  one_part.pairs.push_back(GgufPair("split.count", 2, Raw(uint16_t{1})));
  EXPECT_TRUE(OpenStatus(one_part.Build()).ok());
}

TEST(GgufTest, RefusesTensors) {
  const uint64_t big = uint64_t{1} << 62;
  const struct {
    std::function<void(GgufBuilder&)> spoil;
    StatusCode code;
    std::string text;
  } cases[] = {
      {[](GgufBuilder& b) { b.tensors[1].name = "a"; }, StatusCode::kDataLoss, "'a' comes twice"},
      {[](GgufBuilder& b) { b.tensors[0] = {"\n\xFF" + std::string(300, 'n'), {}, 0, "", {}}; }, StatusCode::kDataLoss,
       "'\\x0A\\xFF" + std::string(198, 'n') + "...' has 0 dimensions"},
      {[](GgufBuilder& b) { b.tensors[0].dims = {}; }, StatusCode::kDataLoss, "'a' has 0 dimensions"},
      {[](GgufBuilder& b) { b.tensors[0].dims = {1, 1, 1, 1, 6}; }, StatusCode::kDataLoss, "'a' has 5 dimensions"},
      {[](GgufBuilder& b) { b.tensors[0].dims = {3, 0}; }, StatusCode::kDataLoss, "a dimension of 0"},
      {[](GgufBuilder& b) { b.tensors[0].dims = {3, ~uint64_t{0}}; }, StatusCode::kDataLoss, "a dimension of 18446744"},
      {[=](GgufBuilder& b) { b.tensors[0].dims = {big, 4}; }, StatusCode::kDataLoss, "overflows"},
      {[=](GgufBuilder& b) { b.tensors[0].dims = {big}; }, StatusCode::kDataLoss, "overflows"},
      {[](GgufBuilder& b) { b.tensors[0].dims = {3, 3000}; }, StatusCode::kDataLoss, "36000 bytes at offset 0 pass"},
      {[](GgufBuilder& b) { b.tensors[1].dims = {48}; }, StatusCode::kDataLoss, "not whole Q8_0 blocks of 32"},
      {[](GgufBuilder& b) { b.tensors[0].type = 23; }, StatusCode::kUnimplemented, "'a' is of type IQ4_XS"},
      {[](GgufBuilder& b) { b.tensors[0].type = 26; }, StatusCode::kUnimplemented, "'a' is of type I32"},
      {[](GgufBuilder& b) { b.tensors[0].type = 777; }, StatusCode::kUnimplemented, "'a' is of type number 777"},
      {[](GgufBuilder& b) { b.tensors[1].offset = 33; }, StatusCode::kDataLoss, "offset 33 is not a multiple"},
      {[](GgufBuilder& b) { b.tensors[1].offset = 0; }, StatusCode::kDataLoss, "overlap"},
      {[](GgufBuilder& b) { b.tensors[1].offset = 1 << 20; }, StatusCode::kDataLoss, "offset 1048576 pass"},
      {[](GgufBuilder& b) { b.tensors[1].offset = ~uint64_t{31}; }, StatusCode::kDataLoss, "'b': 68 bytes at offset"},
  };
  for (const auto& bad : cases) {
    GgufBuilder builder = SmallGguf();
    bad.spoil(builder);
    ExpectRefused(builder, bad.code, bad.text);
  }
}

}  // namespace
}  // namespace fastllm::runtime
