#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "core/config/field_access.h"
#include "fastllm/config.h"
#include "fastllm/sampling_params.h"

namespace fastllm {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

template <typename S = SamplingParams>
std::string SetError(std::string_view name, const FieldValue& value) {
  S s;
  const Status status = SetField(s, name, value);
  EXPECT_FALSE(status.ok()) << name;
  EXPECT_EQ(GetField(s, name).ok() ? GetField(s, name).value() : FieldValue(),
            GetField(S(), name).ok() ? GetField(S(), name).value() : FieldValue())
      << "changed on error";
  return status.message();
}

TEST(Fields, SetsAndGetsEveryType) {
  SamplingParams p;
  EXPECT_TRUE(SetField(p, "temperature", 0.5).ok());
  EXPECT_EQ(p.temperature, 0.5f);
  EXPECT_TRUE(SetField(p, "temperature", int64_t{2}).ok());
  EXPECT_EQ(p.temperature, 2.0f);
  EXPECT_TRUE(SetField(p, "top_k", int64_t{40}).ok());
  EXPECT_EQ(p.top_k, 40);
  EXPECT_TRUE(SetField(p, "max_tokens", 8.0).ok());
  EXPECT_EQ(p.max_tokens, 8);
  EXPECT_TRUE(SetField(p, "seed", int64_t{-3}).ok());
  EXPECT_EQ(p.seed, -3);
  EXPECT_TRUE(SetField(p, "stop", std::string("end")).ok());
  EXPECT_EQ(p.stop, std::vector<std::string>{"end"});
  EXPECT_TRUE(SetField(p, "stop", std::vector<std::string>{"a", "b"}).ok());
  EXPECT_EQ(p.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(SetField(p, "stop", std::vector<int64_t>{}).ok());
  EXPECT_TRUE(p.stop.empty());
  EXPECT_TRUE(SetField(p, "stop_token_ids", std::vector<int64_t>{3, 4}).ok());
  EXPECT_EQ(p.stop_token_ids, (std::vector<int32_t>{3, 4}));
  EXPECT_TRUE(SetField(p, "ignore_eos", true).ok());
  EXPECT_TRUE(p.ignore_eos);
  EXPECT_EQ(GetField(p, "stop_token_ids").value(), FieldValue(std::vector<int64_t>{3, 4}));
  EXPECT_EQ(GetField(p, "max_tokens").value(), FieldValue(int64_t{8}));

  EngineConfig c;
  EXPECT_TRUE(SetField(c, "load_format", std::string("gguf")).ok());
  EXPECT_EQ(c.model.load_format, "gguf");
  EXPECT_TRUE(SetField(c, "kv_cache_memory_bytes", int64_t{1} << 40).ok());
  EXPECT_EQ(c.cache.kv_cache_memory_bytes, int64_t{1} << 40);
}

TEST(Fields, FloatsComeBackAsTheirShortestDecimal) {
  SamplingParams p;
  p.top_p = 0.9f;
  EXPECT_EQ(GetField(p, "top_p").value(), FieldValue(0.9));
}

TEST(Fields, NullUnsetsAnOptionalAndResetsOthers) {
  SamplingParams p;
  p.temperature = 0.1f;
  p.stop = {"x"};
  EXPECT_TRUE(SetField(p, "max_tokens", FieldValue()).ok());
  EXPECT_EQ(p.max_tokens, std::nullopt);
  EXPECT_TRUE(SetField(p, "temperature", FieldValue()).ok());
  EXPECT_EQ(p.temperature, 1.0f);
  EXPECT_TRUE(SetField(p, "stop", FieldValue()).ok());
  EXPECT_TRUE(p.stop.empty());
}

TEST(Fields, OutOfBoundsNamesValueAndLimit) {
  EXPECT_EQ(SetError("top_p", 1.5), "top_p must be in (0, 1], got 1.5");
  EXPECT_EQ(SetError("top_p", 0.0), "top_p must be in (0, 1], got 0");
  EXPECT_EQ(SetError("top_p", 1e-50), "top_p must be in (0, 1], got 0");  // rounds to 0 as a float
  EXPECT_EQ(SetError("top_p", kNaN), "top_p must be in (0, 1], got nan");
  EXPECT_EQ(SetError("temperature", kInf), "temperature must be in [0, 1000000], got inf");
  EXPECT_EQ(SetError("temperature", -0.5), "temperature must be in [0, 1000000], got -0.5");
  EXPECT_EQ(SetError("max_tokens", int64_t{0}), "max_tokens must be at least 1, got 0");
  EXPECT_EQ(SetError("stop_token_ids", std::vector<int64_t>{1, -5}), "stop_token_ids[1] must be at least 0, got -5");
  EXPECT_EQ(SetError<EngineConfig>("load_format", std::string("zip")),
            "load_format must be one of 'auto', 'gguf', 'safetensors', 'dummy', got 'zip'");
  EXPECT_EQ(SetError<EngineConfig>("block_size", int64_t{2000}), "block_size must be in [1, 1024], got 2000");
}

TEST(Fields, IntegersAreNeverTruncated) {
  EXPECT_EQ(SetError("max_tokens", int64_t{3000000000}), "max_tokens must be in [1, 2147483647], got 3000000000");
  EXPECT_EQ(SetError("max_tokens", int64_t{4294967297}), "max_tokens must be in [1, 2147483647], got 4294967297");
  EXPECT_EQ(SetError("top_k", int64_t{-4294967295}), "top_k must be in [-1, 2147483647], got -4294967295");
  EXPECT_EQ(SetError("stop_token_ids", std::vector<int64_t>{int64_t{1} << 32}),
            "stop_token_ids[0] must be in [0, 2147483647], got 4294967296");
  EXPECT_EQ(SetError("max_tokens", 1.5), "max_tokens must be an integer, got 1.5");
  EXPECT_EQ(SetError("seed", 1e300), "seed must be an integer, got 1e+300");
  EXPECT_EQ(SetError("max_tokens", kNaN), "max_tokens must be an integer, got nan");
}

TEST(Fields, WrongTypeIsRefused) {
  EXPECT_EQ(SetError("max_tokens", true), "max_tokens must be an integer, got true");
  EXPECT_EQ(SetError("max_tokens", std::string("7")), "max_tokens must be an integer, got '7'");
  EXPECT_EQ(SetError("temperature", false), "temperature must be a number, got false");
  EXPECT_EQ(SetError("ignore_eos", int64_t{1}), "ignore_eos must be true or false, got 1");
  EXPECT_EQ(SetError("stop", std::vector<int64_t>{1}), "stop must be a string or a list of strings, got [1]");
  EXPECT_EQ(SetError("stop_token_ids", std::vector<std::string>{"a"}),
            "stop_token_ids must be a list of integers, got ['a']");
  EXPECT_EQ(SetError<EngineConfig>("model", int64_t{3}), "model must be a string, got 3");
}

TEST(Fields, UnknownNameSuggestsTheNearest) {
  EngineConfig c;
  const Status status = SetField(c, "max_num_seq", int64_t{1});
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "unknown option 'max_num_seq'; did you mean 'max_num_seqs'?");
  EXPECT_EQ(SetField(c, "blokc_size", int64_t{1}).message(), "unknown option 'blokc_size'; did you mean 'block_size'?");
  EXPECT_EQ(SetField(c, "Block-Size", int64_t{1}).message(), "unknown option 'Block-Size'; did you mean 'block_size'?");
  SamplingParams p;
  EXPECT_EQ(SetField(p, "temprature", 1.0).message(), "unknown option 'temprature'; did you mean 'temperature'?");
  const std::string far = GetField(p, "qqqqqq").status().message();
  EXPECT_EQ(far.substr(0, 63), "unknown option 'qqqqqq'; known options: n, temperature, top_p, ");
}

TEST(Fields, EditDistanceCountsNeighbourSwapsAsOne) {
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("abcd", "acbd"), 1);
  EXPECT_EQ(EditDistance("ca", "abc"), 3);  // each part is edited at most once
  EXPECT_EQ(EditDistance("same", "same"), 0);
}

TEST(Fields, ValidateChecksWhatWasSetDirectly) {
  SamplingParams p;
  EXPECT_TRUE(ValidateFields(p).ok());
  p.min_p = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(ValidateFields(p).message(), "min_p must be in [0, 1], got nan");
  p.min_p = 0.1f;
  p.max_tokens = 0;
  EXPECT_EQ(ValidateFields(p).message(), "max_tokens must be at least 1, got 0");
  p.max_tokens.reset();
  EXPECT_TRUE(ValidateFields(p).ok());
  EngineConfig c;
  EXPECT_TRUE(ValidateFields(c).ok());
  c.model.dtype = "int3";
  EXPECT_EQ(ValidateFields(c).message(), "dtype must be one of 'auto', 'float32', 'bfloat16', 'float16', got 'int3'");
}

TEST(Fields, ListsAllFieldsWithDefaultsThatPass) {
  const auto list = ListFields<EngineConfig>();
  std::set<std::string> names;
  for (const auto& f : list) {
    EXPECT_TRUE(names.insert(f.name).second) << f.name << " is in two rooms";
    EXPECT_FALSE(f.help.empty());
    EXPECT_EQ(f.default_value, GetField(EngineConfig(), f.name).value());
    EngineConfig c;
    EXPECT_TRUE(SetField(c, f.name, f.default_value).ok()) << f.name;
  }
  const auto find = [&](std::string_view name) {
    return *std::find_if(list.begin(), list.end(), [&](const auto& f) { return f.name == name; });
  };
  EXPECT_EQ(find("max_num_seqs").type, "int32");
  EXPECT_TRUE(find("max_num_seqs").optional);
  EXPECT_EQ(find("max_num_seqs").room, "scheduler");
  EXPECT_EQ(find("load_format").choices, (std::vector<std::string>{"auto", "gguf", "safetensors", "dummy"}));
  EXPECT_EQ(find("block_size").default_value, FieldValue(int64_t{16}));
  EXPECT_EQ(find("block_size").hi, 1024);
  EXPECT_EQ(ListFields<SamplingParams>().front().name, "n");
  EXPECT_EQ(ListFields<SamplingParams>().front().type, "int32");
}

TEST(Fields, ReadsCommandLineWords) {
  const auto parse = [](const char* type, bool optional, std::string_view text) {
    FieldDescription f;
    f.name = "field";
    f.type = type;
    f.optional = optional;
    return ParseFieldText(f, text);
  };
  EXPECT_EQ(parse("int32", false, "-12").value(), FieldValue(int64_t{-12}));
  EXPECT_EQ(parse("int64", true, "None").value(), FieldValue());
  EXPECT_EQ(parse("float", false, "1e-3").value(), FieldValue(1e-3));
  EXPECT_EQ(parse("bool", false, "yes").value(), FieldValue(true));
  EXPECT_EQ(parse("bool", false, "OFF").value(), FieldValue(false));
  EXPECT_EQ(parse("list[int32]", false, "1,2,3").value(), FieldValue(std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(parse("list[int32]", false, "").value(), FieldValue(std::vector<int64_t>{}));
  EXPECT_EQ(parse("list[string]", false, "a,b").value(), FieldValue(std::vector<std::string>{"a,b"}));
  EXPECT_EQ(parse("string", false, "none").value(), FieldValue(std::string("none")));
  EXPECT_EQ(parse("int32", false, "12x").status().message(), "field must be an integer, got '12x'");
  EXPECT_EQ(parse("int32", false, "99999999999999999999").status().message(),
            "field must be an integer, got '99999999999999999999'");
  EXPECT_EQ(parse("list[int32]", false, "1,,2").status().message(),
            "field must be integers with commas between, got '1,,2'");
  EXPECT_FALSE(parse("list[int32]", false, "1,").ok());
  EXPECT_FALSE(parse("bool", false, "2").ok());
  EXPECT_FALSE(parse("float", false, "").ok());
}

}  // namespace
}  // namespace fastllm
