#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/request/validate_options.h"

namespace fastllm {
namespace {

std::string Error(const GenerationRequest& request, bool by_priority = true) {
  RequestLimits limits;
  limits.by_priority = by_priority;
  const Status status = ValidateOptions(request, limits);
  EXPECT_TRUE(status.ok() || status.code() == StatusCode::kInvalidArgument);
  return status.message();
}

GenerationRequest Request8() {
  GenerationRequest request;
  request.prompt_token_ids.assign(8, 1);
  return request;
}

TEST(ValidateOptions, Priority) {
  GenerationRequest request = Request8();
  EXPECT_EQ(Error(request, false), "");
  request.priority = -3;
  EXPECT_EQ(Error(request), "");
  EXPECT_EQ(Error(request, false),
            "priority must be 0 with scheduling_policy 'fcfs', which does not look at it, got -3");
}

TEST(ValidateOptions, TimeLimits) {
  GenerationRequest request = Request8();
  request.timeout_ms = kMaxTimeLimitMs;
  EXPECT_EQ(Error(request), "");
  request.timeout_ms = kMaxTimeLimitMs + 1;
  EXPECT_EQ(Error(request), "timeout_ms must be in [0, 31536000000], got 31536000001");
  request.timeout_ms = 0;
  request.max_queue_time_ms = -1;
  EXPECT_EQ(Error(request), "max_queue_time_ms must be in [0, 31536000000], got -1");
}

TEST(ValidateOptions, ExtraKeys) {
  const auto error = [](ExtraKeys keys) {
    GenerationRequest request = Request8();
    request.extra_keys = std::move(keys);
    return Error(request);
  };
  EXPECT_EQ(error({"salt", "lora", "/path", {{"a", 0, 3}, {"b", 3, 5}}, {"d", ""}}), "");
  EXPECT_EQ(error({"", "", "/path", {}, {}}), "lora_path needs a lora_name, which is empty");
  EXPECT_EQ(error({"", "", "", {{"", 0, 1}}, {}}), "media[0] must have a hash");
  EXPECT_EQ(error({"", "", "", {{"a", 0, 0}}, {}}), "media[0] must have a length of at least 1, got 0");
  EXPECT_EQ(error({"", "", "", {{"a", -1, 2}}, {}}), "media[0] must begin at 0 or later, got -1");
  EXPECT_EQ(error({"", "", "", {{"a", 2, 2}, {"b", 3, 1}}, {}}), "media[1] must begin at 4 or later, got 3");
  EXPECT_EQ(error({"", "", "", {{"a", 6, 3}}, {}}), "media[0] must end within the prompt's 8 tokens, got 9");
  EXPECT_EQ(error({"", "", "", {{"a", 1, INT32_MAX}}, {}}),
            "media[0] must end within the prompt's 8 tokens, got 2147483648");
  EXPECT_EQ(error({"", "", "", {}, std::vector<std::string>(9, "d")}),
            "embedding_digests must be at most one per block, got 9 for 8 tokens");
}

}  // namespace
}  // namespace fastllm
