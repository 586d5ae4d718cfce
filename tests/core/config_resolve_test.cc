#include <gtest/gtest.h>

#include "core/config/resolve.h"

namespace fastllm {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
const ModelFacts kModel{.max_position_embeddings = 2048, .kv_bytes_per_block = 1 << 20};
const DeviceFacts kDevice{.device = "cpu", .available_bytes = 100 * kGiB, .usable_cores = 4};

ResolvedConfig Ok(const EngineConfig& config, const ModelFacts& model = kModel, const DeviceFacts& device = kDevice) {
  auto resolved = Resolve(config, model, device);
  EXPECT_TRUE(resolved.ok()) << resolved.status().ToString();
  return resolved.ok() ? resolved.value() : ResolvedConfig{};
}

std::string Error(const EngineConfig& config, const ModelFacts& model = kModel, const DeviceFacts& device = kDevice) {
  const auto resolved = Resolve(config, model, device);
  EXPECT_FALSE(resolved.ok());
  return resolved.status().message();
}

const ResolvedValue& Value(const ResolvedConfig& r, std::string_view name) {
  for (const ResolvedValue& v : r.values) {
    if (v.name == name) return v;
  }
  static const ResolvedValue none;
  ADD_FAILURE() << "no value " << name;
  return none;
}

TEST(Resolve, DefaultsOnTheCpu) {
  const ResolvedConfig r = Ok({});
  EXPECT_EQ(r.sched.max_model_len, 2048);
  EXPECT_EQ(r.sched.max_num_seqs, 256);
  EXPECT_EQ(r.sched.max_num_batched_tokens, 1024);
  EXPECT_TRUE(r.sched.enable_chunked_prefill);
  EXPECT_EQ(r.num_threads, 4);
  EXPECT_EQ(r.kv.block_size, 16);
  EXPECT_EQ(r.kv.num_blocks, 4096);  // 4 GiB of 1 MiB blocks
  EXPECT_TRUE(r.kv.enable_prefix_caching);
  EXPECT_EQ(Value(r, "num_kv_blocks").value, "4096");
  EXPECT_EQ(Value(r, "num_kv_blocks").reason,
            "budget of 4294967296 bytes, the smaller of 4 GiB and 40% of the 107374182400 available bytes");
  EXPECT_EQ(Value(r, "kv_capacity_tokens").value, "65520");
  EXPECT_EQ(Value(r, "dtype").value, "float32");
  for (const ResolvedValue& v : r.values) EXPECT_FALSE(v.reason.empty()) << v.name;
}

TEST(Resolve, SchedulingPolicies) {
  const SchedConfig defaults = Ok({}).sched;
  EXPECT_TRUE(defaults.async_scheduling);
  EXPECT_TRUE(defaults.long_prefill_fair_share);
  EXPECT_EQ(defaults.policy, SchedulingPolicy::kFcfs);
  EXPECT_EQ(defaults.watermark, 0.0f);
  EXPECT_EQ(defaults.max_num_queued_reqs, 0);
  EXPECT_EQ(defaults.max_num_queued_tokens, 0);
  EXPECT_EQ(defaults.request_timeout_ms, 0);
  EXPECT_EQ(defaults.max_queue_ms, 0);
  EngineConfig c;
  c.scheduler.async_scheduling = false;
  c.scheduler.long_prefill_fair_share = false;
  c.scheduler.long_prefill_token_threshold = 9;
  c.scheduler.scheduling_policy = "priority";
  c.scheduler.watermark = 0.25f;
  c.scheduler.max_num_queued_reqs = 7;
  c.scheduler.max_num_queued_tokens = int64_t{1} << 33;
  c.scheduler.request_timeout_ms = 1500;
  c.scheduler.max_queue_time_ms = 200;
  const SchedConfig set = Ok(c).sched;
  EXPECT_FALSE(set.async_scheduling);
  EXPECT_FALSE(set.long_prefill_fair_share);
  EXPECT_EQ(set.long_prefill_token_threshold, 9);
  EXPECT_EQ(set.policy, SchedulingPolicy::kPriority);
  EXPECT_EQ(set.watermark, 0.25f);
  EXPECT_EQ(set.max_num_queued_reqs, 7);
  EXPECT_EQ(set.max_num_queued_tokens, int64_t{1} << 33);
  EXPECT_EQ(set.request_timeout_ms, 1500);
  EXPECT_EQ(set.max_queue_ms, 200);
}

TEST(Resolve, FortyPercentOfASmallMachine) {
  DeviceFacts device = kDevice;
  device.available_bytes = 1000 << 20;
  EXPECT_EQ(Ok({}, kModel, device).kv.num_blocks, 400);
}

TEST(Resolve, NoMoreBlocksThanTheRequestsCanUse) {
  EngineConfig c;
  c.scheduler.max_num_seqs = 2;
  c.model.max_model_len = 100;  // 7 blocks each
  const ResolvedConfig r = Ok(c);
  EXPECT_EQ(r.kv.num_blocks, 15);
  EXPECT_EQ(r.sched.max_num_batched_tokens, 200);
  c.cache.num_gpu_blocks_override = 999;  // exact, as asked
  EXPECT_EQ(Ok(c).kv.num_blocks, 999);
}

TEST(Resolve, OverrideBeatsBytesBeatsDefault) {
  EngineConfig c;
  c.cache.kv_cache_memory_bytes = 10 << 20;
  EXPECT_EQ(Ok(c).kv.num_blocks, 10);
  c.cache.num_gpu_blocks_override = 5;
  EXPECT_EQ(Ok(c).kv.num_blocks, 5);
}

TEST(Resolve, TooLittleKvMemoryNamesNeedAndValue) {
  EngineConfig c;
  c.cache.kv_cache_memory_bytes = 2000000;
  EXPECT_EQ(Error(c),
            "the KV cache needs at least 2097152 bytes (two blocks of 1048576, one of them the null block); "
            "got kv_cache_memory_bytes = 2000000");
  c.cache.kv_cache_memory_bytes = 200 * kGiB;
  EXPECT_EQ(Error(c), "kv_cache_memory_bytes 214748364800 needs 214748364800 bytes, 107374182400 are available");
  c.cache.num_gpu_blocks_override = 200000;
  EXPECT_EQ(Error(c), "num_gpu_blocks_override 200000 needs 209715200000 bytes, 107374182400 are available");
  c.cache.num_gpu_blocks_override = 2147483647;
  EXPECT_EQ(Error(c), "num_gpu_blocks_override must be at most 134217727 with block_size 16, got 2147483647");
}

TEST(Resolve, SmallPoolKeepsMaxModelLen) {
  EngineConfig c;
  c.cache.num_gpu_blocks_override = 3;
  const ResolvedConfig r = Ok(c);
  EXPECT_EQ(r.sched.max_model_len, 2048);
  EXPECT_EQ(Value(r, "kv_capacity_tokens").value, "32");
}

TEST(Resolve, MaxModelLen) {
  EngineConfig c;
  c.model.max_model_len = 4096;
  EXPECT_EQ(Error(c), "max_model_len must be at most 2048, the model's context length, got 4096");
  c.model.max_model_len = 512;
  EXPECT_EQ(Ok(c).sched.max_model_len, 512);
  ModelFacts nameless = kModel;
  nameless.max_position_embeddings = 0;
  EXPECT_EQ(Error({}, nameless), "max_model_len must be set: the model does not name its context length");
  EXPECT_EQ(Ok(c, nameless).sched.max_model_len, 512);
}

TEST(Resolve, BatchLimitsMoveDerivedValuesAndRefuseContradictions) {
  EngineConfig c;
  c.scheduler.max_num_batched_tokens = 64;
  EXPECT_EQ(Ok(c).sched.max_num_seqs, 64);
  c.scheduler.max_num_seqs = 100;
  EXPECT_EQ(Error(c), "max_num_seqs must be at most max_num_batched_tokens (64), got 100");
  c.scheduler.max_num_batched_tokens.reset();
  c.scheduler.max_num_seqs = 5000;
  EXPECT_EQ(Ok(c).sched.max_num_batched_tokens, 5000);

  EngineConfig whole;
  whole.scheduler.enable_chunked_prefill = false;
  ModelFacts longer = kModel;
  longer.max_position_embeddings = 8192;
  EXPECT_EQ(Ok(whole, longer).sched.max_num_batched_tokens, 8192);
  EXPECT_EQ(Ok(whole).sched.max_num_batched_tokens, 2048);
  whole.scheduler.max_num_batched_tokens = 1024;
  EXPECT_EQ(
      Error(whole),
      "max_num_batched_tokens must be at least max_model_len (2048) when enable_chunked_prefill is false, got 1024");
}

TEST(Resolve, ChecksFieldsFirst) {
  EngineConfig c;
  c.cache.block_size = 0;
  EXPECT_EQ(Error(c), "block_size must be in [1, 1024], got 0");
}

TEST(Resolve, Threads) {
  EngineConfig c;
  c.runtime.cpu_threads = 6;
  const ResolvedConfig r = Ok(c);
  EXPECT_EQ(r.num_threads, 6);
  EXPECT_EQ(Value(r, "num_threads").reason, "set by the user; more than the 4 usable cores");
}

TEST(Resolve, OnAGpuTheBudgetComesFromOutside) {
  DeviceFacts gpu{.device = "cuda", .available_bytes = 50 * kGiB, .usable_cores = 4};
  gpu.dtype = "bfloat16";
  gpu.dtype_reason = "the checkpoint's own type";
  EngineConfig c;
  auto limits = ResolveLimits(c, kModel, gpu);
  ASSERT_TRUE(limits.ok()) << limits.status().ToString();
  EXPECT_EQ(limits->sched.max_num_batched_tokens, 8192);
  EXPECT_EQ(limits->kv.num_blocks, 0);  // not known yet
  EXPECT_EQ(limits->kv.block_size, 16);
  gpu.kv_budget_bytes = 3 << 20;
  gpu.kv_budget_reason = "what is left";
  ASSERT_TRUE(ResolveKvBlocks(c, kModel, gpu, &*limits).ok());
  EXPECT_EQ(limits->kv.num_blocks, 3);
  EXPECT_EQ(Value(*limits, "num_kv_blocks").reason, "budget of 3145728 bytes, what is left");
  EXPECT_EQ(Value(*limits, "dtype").value, "bfloat16");
  EXPECT_EQ(Value(*limits, "dtype").reason, "the checkpoint's own type");
  EXPECT_EQ(Value(*limits, "kv_cache_dtype").value, "bfloat16");
  c.cache.kv_cache_memory_bytes = 5 << 20;
  EXPECT_EQ(Ok(c, kModel, gpu).kv.num_blocks, 5);
  c.cache.kv_cache_memory_bytes = 60 * kGiB;
  EXPECT_EQ(Error(c, kModel, gpu),
            "kv_cache_memory_bytes 64424509440 needs 64424509440 bytes, 53687091200 are available");
}

}  // namespace
}  // namespace fastllm
