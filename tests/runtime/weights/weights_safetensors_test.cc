#include <filesystem>

#include <gtest/gtest.h>

#include "runtime/weights/safetensors.h"
#include "runtime/weights/test_files.h"

namespace fastllm::runtime {
namespace {

using testing::Raw;
using testing::RawFloats;
using testing::Safetensors;
using testing::TempDir;

// One F32 tensor [1] with this value.
std::string OneTensor(const std::string& name, float value) {
  return Safetensors("{\"" + name + "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", Raw(value));
}

void ExpectStatus(const std::string& path, StatusCode code, const std::string& text) {
  const Status status = SafetensorsSource::Open(path).status();
  EXPECT_EQ(status.code(), code) << status.ToString();
  EXPECT_NE(status.message().find(text), std::string::npos) << status.ToString() << " lacks: " << text;
}

TEST(SafetensorsTest, ReadsAFileAndAFolder) {
  TempDir dir;
  const std::string path = dir.Write("model.safetensors", testing::SmallSafetensors());
  dir.Write("consolidated.safetensors", "not a safetensors file");
  for (const std::string& from : {path, dir.path()}) {
    auto source = SafetensorsSource::Open(from);
    ASSERT_TRUE(source.ok()) << source.status().ToString();
    ASSERT_EQ((*source)->tensors().size(), 2u);
    const TensorInfo* a = (*source)->Find("a");
    ASSERT_NE(a, nullptr);
    EXPECT_EQ(a->shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(a->type, WeightType::kF32);
    EXPECT_EQ(testing::Values(*a), (std::vector<float>{0, 1, 2, 3, 4, 5}));
    const TensorInfo* b = (*source)->Find("b");
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(b->type, WeightType::kBF16);
    EXPECT_EQ(testing::Values(*b), (std::vector<float>{1, -2}));
  }
}

TEST(SafetensorsTest, TellsWhyATensorIsNotRead) {
  TempDir dir;
  auto source = SafetensorsSource::Open(dir.Write("m.safetensors", testing::SmallSafetensors()));
  ASSERT_TRUE(source.ok());
  EXPECT_EQ((*source)->Find("n"), nullptr);
  const Status unread = (*source)->Get("n").status();
  EXPECT_EQ(unread.code(), StatusCode::kUnimplemented);
  EXPECT_NE(unread.message().find("'n' has dtype 'I64'"), std::string::npos) << unread.message();
  EXPECT_EQ((*source)->Get("absent").status().code(), StatusCode::kNotFound);
  ASSERT_TRUE((*source)->Get("b").ok());
  EXPECT_EQ(*(*source)->Get("b"), (*source)->Find("b"));
}

TEST(SafetensorsTest, ReadsScalarsAndEmptyTensors) {
  TempDir dir;
  auto source = SafetensorsSource::Open(
      dir.Write("m.safetensors", Safetensors(R"({"s":{"dtype":"F16","shape":[],"data_offsets":[0,2]},)"
                                             R"("e":{"dtype":"F32","shape":[0,7],"data_offsets":[2,2]}})",
                                             Raw(uint16_t{0x3C00}))));
  ASSERT_TRUE(source.ok()) << source.status().ToString();
  EXPECT_EQ(testing::Values(*(*source)->Find("s")), std::vector<float>{1});
  EXPECT_TRUE(testing::Values(*(*source)->Find("e")).empty());
}

TEST(SafetensorsTest, ReadsTheShardsOfTheIndex) {
  TempDir dir;
  dir.Write("model-1.safetensors", OneTensor("x", 1));
  // "x" is here too: the index, which places it in the first shard, decides. "extra" is in no index.
  dir.Write("model-2.safetensors", Safetensors(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                               R"("y":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},)"
                                               R"("i":{"dtype":"I32","shape":[1],"data_offsets":[8,12]},)"
                                               R"("extra":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})",
                                               RawFloats({9, 2, 0, 3})));
  dir.Write("model-3.safetensors", "not named by the index");
  dir.Write("model.safetensors.index.json",
            R"({"metadata":{"total_size":8,"deep":[{"a":[1.5,-1,null,true,"s"]}]},"weight_map":{)"
            R"("x":"model-1.safetensors","y":"model-2.safetensors","i":"model-2.safetensors"}})");
  auto source = SafetensorsSource::Open(dir.path());
  ASSERT_TRUE(source.ok()) << source.status().ToString();
  ASSERT_EQ((*source)->tensors().size(), 2u);
  EXPECT_EQ(testing::Values(*(*source)->Find("x")), std::vector<float>{1});
  EXPECT_EQ(testing::Values(*(*source)->Find("y")), std::vector<float>{2});
  EXPECT_EQ((*source)->Get("i").status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ((*source)->Find("extra"), nullptr);
}

// Model caches keep a folder of links to the files.
TEST(SafetensorsTest, FollowsLinks) {
  TempDir files;
  TempDir folder;
  std::filesystem::create_symlink(files.Write("blob", OneTensor("x", 4)), folder.path() + "/model-1.safetensors");
  std::filesystem::create_symlink(files.Write("index", R"({"weight_map":{"x":"model-1.safetensors"}})"),
                                  folder.path() + "/model.safetensors.index.json");
  auto source = SafetensorsSource::Open(folder.path());
  ASSERT_TRUE(source.ok()) << source.status().ToString();
  EXPECT_EQ(testing::Values(*(*source)->Find("x")), std::vector<float>{4});
}

TEST(SafetensorsTest, PrefersTheSingleFileToTheIndex) {
  TempDir dir;
  dir.Write("model.safetensors", OneTensor("single", 1));
  dir.Write("model.safetensors.index.json", R"({"weight_map":{"x":"gone.safetensors"}})");
  auto source = SafetensorsSource::Open(dir.path());
  ASSERT_TRUE(source.ok()) << source.status().ToString();
  EXPECT_NE((*source)->Find("single"), nullptr);
}

TEST(SafetensorsTest, RefusesPathsWithoutWeights) {
  TempDir dir;
  ExpectStatus(dir.path() + "/none", StatusCode::kNotFound, "none");
  dir.Write("consolidated.safetensors", OneTensor("x", 1));
  ExpectStatus(dir.path(), StatusCode::kNotFound, "neither model.safetensors nor model.safetensors.index.json");
}

TEST(SafetensorsTest, RefusesIndexes) {
  const struct {
    std::string json;
    StatusCode code;
    std::string text;
  } cases[] = {
      {"", StatusCode::kDataLoss, "invalid JSON"},
      {"[]", StatusCode::kDataLoss, "unexpected an array"},
      {"3", StatusCode::kDataLoss, "unexpected the number 3"},
      {"{}", StatusCode::kDataLoss, "no weight_map"},
      {R"({"weight_map":[]})", StatusCode::kDataLoss, "unexpected an array"},
      {R"({"weight_map":"model-1.safetensors"})", StatusCode::kDataLoss, "unexpected the string"},
      {R"({"weight_map":{"x":1}})", StatusCode::kDataLoss, "unexpected the number 1"},
      {R"({"weight_map":{"x":{}}})", StatusCode::kDataLoss, "'x': unexpected an object"},
      {R"({"weight_map":{},"weight_map":{}})", StatusCode::kDataLoss, "weight_map comes twice"},
      {R"({"weight_map":{"x":"model-1.safetensors","x":"model-1.safetensors"}})", StatusCode::kDataLoss,
       "'x' comes twice"},
      {R"({"weight_map":{"x":"../model-1.safetensors"}})", StatusCode::kDataLoss, "'../model-1.safetensors'"},
      {R"({"weight_map":{"x":"/etc/x.safetensors"}})", StatusCode::kDataLoss, "same folder"},
      {R"({"weight_map":{"x":"..\\x.safetensors"}})", StatusCode::kDataLoss, "same folder"},
      {R"({"weight_map":{"x":"m\u0000.safetensors"}})", StatusCode::kDataLoss, "same folder"},
      {R"({"weight_map":{"x":".."}})", StatusCode::kDataLoss, "same folder"},
      {R"({"weight_map":{"x":"pytorch_model.bin"}})", StatusCode::kDataLoss, "'pytorch_model.bin'"},
      {R"({"weight_map":{"x":"gone.safetensors"}})", StatusCode::kNotFound, "shard 'gone.safetensors'"},
      {R"({"weight_map":{"x":"model-1.safetensors","z":"model-1.safetensors"}})", StatusCode::kDataLoss,
       "'z' is not in shard 'model-1.safetensors'"},
      {R"({"weight_map":{"x":"bad.safetensors"}})", StatusCode::kDataLoss, "bad.safetensors'"},
      {R"({"metadata":)" + std::string(100000, '[') + std::string(100000, ']') + "}", StatusCode::kDataLoss,
       "nested more than 16 deep"},
  };
  TempDir dir;
  dir.Write("model-1.safetensors", OneTensor("x", 1));
  dir.Write("bad.safetensors", "bad");
  for (const auto& bad : cases) {
    dir.Write("model.safetensors.index.json", bad.json);
    ExpectStatus(dir.path(), bad.code, bad.text);
  }
}

TEST(SafetensorsTest, RefusesHeaders) {
  const std::string four(4, '\0');
  const struct {
    std::string json;
    std::string data;
    std::string text;
  } cases[] = {
      {"", "", "invalid JSON"},
      {"[]", "", "unexpected an array"},
      {"null", "", "unexpected null"},
      {"{} x", "", "invalid JSON"},
      {R"({"x":1})", "", "'x': unexpected the number 1"},
      {R"({"x":{"dtype":"F32","shape":[1]}})", four, "'x': dtype, shape and data_offsets"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}})", four, "field 'more'"},
      {R"({"x":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", four, "field 'dtype'"},
      {R"({"x":{"dtype":1,"shape":[1],"data_offsets":[0,4]}})", four, "unexpected the number 1"},
      {R"({"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", four, "unexpected the number -1"},
      {R"({"x":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", four, "unexpected the number 1.0"},
      {R"({"x":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", four, "unexpected an array"},
      {R"({"x":{"dtype":"F32","shape":{},"data_offsets":[0,4]}})", four, "unexpected an object"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", four, "data_offsets has 1 numbers, not 2"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", four, "data_offsets has 3 numbers, not 2"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", four, "[4, 0] are not a range in the 4 bytes"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", four, "[0, 8] are not a range in the 4 bytes"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,0]}})", four, "are not a range"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", four, "[2] of F32 takes 8 bytes, the file has 4"},
      {R"({"x":{"dtype":"I64","shape":[1],"data_offsets":[0,4]}})", four, "of I64 takes 8 bytes"},
      {R"({"x":{"dtype":"F32","shape":[9223372036854775807,3],"data_offsets":[0,4]}})", four, "overflows"},
      {R"({"x":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4]}})", four, "overflows"},
      {R"({"x":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]}})", four, "dimension of 92233"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       four + four, "'x' comes twice"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"y":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
       four + "ab", "within the tensor before it"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("y":{"dtype":"F32","shape":[1],"data_offsets":[6,10]}})",
       four + four + "ab", "after a hole"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", four + "z", "take 4 bytes, the file holds 5"},
      {R"({"__metadata__":{"a":1}})", "", "'__metadata__', field 'a': unexpected the number 1"},
      {R"({"__metadata__":{"a":{}}})", "", "unexpected an object"},
      {"{\"\xFF\":{}}", "", "invalid JSON"},
      {std::string(100000, '['), "", "unexpected an array"},
  };
  TempDir dir;
  for (const auto& bad : cases) {
    ExpectStatus(dir.Write("m.safetensors", Safetensors(bad.json, bad.data)), StatusCode::kDataLoss, bad.text);
  }
}

TEST(SafetensorsTest, RefusesHeaderLengths) {
  TempDir dir;
  ExpectStatus(dir.Write("m.safetensors", ""), StatusCode::kDataLoss, "0 bytes has no header");
  ExpectStatus(dir.Write("m.safetensors", Raw(uint64_t{3}) + "{}"), StatusCode::kDataLoss, "length 3 passes the end");
  ExpectStatus(dir.Write("m.safetensors", Raw(uint64_t{100'000'001}) + "{}"), StatusCode::kDataLoss, "past the limit");
  ExpectStatus(dir.Write("m.safetensors", Raw(~uint64_t{0}) + "{}"), StatusCode::kDataLoss, "past the limit");
  EXPECT_TRUE(SafetensorsSource::Open(dir.Write("m.safetensors", Raw(uint64_t{2}) + "{}")).ok());
}

}  // namespace
}  // namespace fastllm::runtime
