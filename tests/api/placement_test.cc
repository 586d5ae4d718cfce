// Where an engine runs, and the arithmetic of a GPU's memory.
#include "api/placement.h"

#include <gtest/gtest.h>

namespace fastllm::api {
namespace {

runtime::DeviceMemoryUse Use() {
  runtime::DeviceMemoryUse use;
  use.device = "a GPU";
  use.total_bytes = 1000;
  use.free_bytes_at_start = 950;
  use.weight_bytes = 300;
  use.activation_bytes = 50;
  use.staging_bytes = 10;
  use.other_bytes = 40;
  use.graph_reserve_bytes = 25;
  use.tally_reserve_bytes = 15;
  use.free_bytes = 550;  // 950 less the four
  return use;
}

TEST(MeasureDevice, TheCacheGetsTheShareLessEverythingInUse) {
  EngineConfig config;
  config.cache.gpu_memory_utilization = 0.75f;
  DeviceFacts facts;
  std::vector<ResolvedValue> values;
  ASSERT_TRUE(MeasureDevice(config, Use(), &facts, &values).ok());
  EXPECT_EQ(facts.kv_budget_bytes, 750 - (1000 - 550) - 25 - 15);
  EXPECT_EQ(facts.available_bytes, 550 - 25 - 15);
  int64_t accounted = 0;
  for (const ResolvedValue& v : values) {
    if (v.name != "gpu_total_bytes" && !v.name.ends_with("_reserve_bytes")) accounted += std::stoll(v.value);
  }
  EXPECT_EQ(accounted, 1000 - 550);  // every byte in use has a name
}

TEST(MeasureDevice, NoMoreThanIsFree) {
  EngineConfig config;
  config.cache.gpu_memory_utilization = 1.0f;
  DeviceFacts facts;
  std::vector<ResolvedValue> values;
  ASSERT_TRUE(MeasureDevice(config, Use(), &facts, &values).ok());
  EXPECT_EQ(facts.kv_budget_bytes, 510);
}

TEST(MeasureDevice, NothingLeftIsAnErrorThatNamesTheParts) {
  EngineConfig config;
  config.cache.gpu_memory_utilization = 0.4f;
  DeviceFacts facts;
  std::vector<ResolvedValue> values;
  const Status status = MeasureDevice(config, Use(), &facts, &values);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  for (const char* part :
       {"allows 400 of the 1000 bytes of a GPU", "in use are 490", "others 50", "weights 300", "activations 50",
        "staging 10", "context and libraries 40", "graphs 25", "counts of penalties 15"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << " is not in: " << status.message();
  }
  config.cache.kv_cache_memory_bytes = 100;  // asked for in bytes: the share does not matter
  EXPECT_TRUE(MeasureDevice(config, Use(), &facts, &values).ok());
}

TEST(ChoosePlacement, TheCpuComputesInFloat32) {
  EngineConfig config;
  config.runtime.device = "cpu";
  DeviceFacts facts;
  runtime::ModelConfig model;
  model.dtype = "bfloat16";
  const auto chosen = ChoosePlacement(config, model, &facts);
  ASSERT_TRUE(chosen.ok()) << chosen.status().ToString();
  EXPECT_EQ(chosen->device, ops::Device::kCpu);
  EXPECT_EQ(chosen->dtype, ops::DType::kF32);
  EXPECT_EQ(facts.dtype, "float32");
  config.model.dtype = "float16";
  EXPECT_EQ(ChoosePlacement(config, model, &facts).status().message(),
            "dtype is \"float16\"; the CPU computes in float32, float16 needs device cuda");
}

}  // namespace
}  // namespace fastllm::api
