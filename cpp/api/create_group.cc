#include "api/create_group.h"

#include <algorithm>
#include <string>
#include <utility>

#include "api/device_facts.h"
#include "core/config/field_access.h"
#include "core/replicas/engine_group.h"

namespace fastllm::api {
namespace {

// As Resolve() does for one engine on the CPU.
constexpr int64_t kMostKvBytes = int64_t{4} << 30;
constexpr int64_t kKvPercent = 40;

Status Check(const EngineConfig& config, bool has_logits_processors) {
  const int32_t size = config.runtime.data_parallel_size;
  const std::string group =
      size > 1 ? "data_parallel_size " + std::to_string(size) : std::string("restart_failed_engine true");
  if (has_logits_processors) {
    return Status::InvalidArgument("logits processors of the host belong to one engine: " + group +
                                   (size > 1 ? " would call them from several at one time" : " makes new ones"));
  }
  if (config.cache.kv_events_buffer_size > 0) {
    return Status::InvalidArgument("kv_events_buffer_size " + std::to_string(config.cache.kv_events_buffer_size) +
                                   " needs one engine: the events of the caches of " + group + " are not told apart");
  }
  return Status::Ok();
}

const std::string* Resolved(const EngineInfo& info, const std::string& name) {
  const auto found = std::ranges::find(info.resolved, name, &ResolvedValue::name);
  return found == info.resolved.end() ? nullptr : &found->value;
}

}  // namespace

EngineConfig ReplicaConfig(const EngineConfig& config, int32_t replica, int32_t usable_cores, int64_t available_bytes,
                           const EngineInfo* known) {
  const int32_t count = config.runtime.data_parallel_size;
  EngineConfig out = config;
  out.runtime.data_parallel_size = 1;
  if (count == 1) {  // alone, and made anew when it fails
    if (known != nullptr) out.cache.num_gpu_blocks_override = known->num_kv_blocks;
    return out;
  }
  const int32_t cores = config.runtime.cpu_threads > 0 ? config.runtime.cpu_threads : usable_cores;
  out.runtime.cpu_threads = std::max(1, cores / count);
  if (!config.runtime.record_path.empty()) {
    out.runtime.record_path.append(1, '.').append(std::to_string(replica));
  }
  if (known != nullptr) {
    out.cache.num_gpu_blocks_override = known->num_kv_blocks;  // all have one size, whatever memory is left
  } else if (!config.cache.num_gpu_blocks_override && (config.cache.kv_cache_memory_bytes || available_bytes > 0)) {
    const int64_t all =
        config.cache.kv_cache_memory_bytes.value_or(std::min(kMostKvBytes * count, available_bytes / 100 * kKvPercent));
    out.cache.kv_cache_memory_bytes = std::max<int64_t>(1, all / count);
  }
  return out;
}

Result<std::unique_ptr<Engine>> CreateGroup(const EngineConfig& config, std::optional<TokenTable> tokens,
                                            bool has_logits_processors, CreateOne create) {
  FASTLLM_RETURN_IF_ERROR(ValidateFields(config));
  FASTLLM_RETURN_IF_ERROR(Check(config, has_logits_processors));
  EngineGroupOptions options;
  options.num_replicas = config.runtime.data_parallel_size;
  options.balance = config.runtime.data_parallel_balance;
  options.by_prefix = config.runtime.data_parallel_routing == "prefix";
  options.prefix_caching = config.cache.enable_prefix_caching;
  auto known = std::make_shared<std::optional<EngineInfo>>();
  auto factory = [=, tokens = std::move(tokens),
                  create = std::move(create)](int32_t replica) -> Result<std::unique_ptr<Engine>> {
    const EngineConfig own =
        ReplicaConfig(config, replica, UsableCores(), AvailableMemoryBytes(), known->has_value() ? &**known : nullptr);
    FASTLLM_ASSIGN_OR_RETURN(auto engine, create(own, tokens, {}));
    const std::string* device = Resolved(engine->info(), "device");
    if (config.runtime.data_parallel_size > 1 && device != nullptr && *device != "cpu") {
      return Status::Unimplemented("data_parallel_size " + std::to_string(config.runtime.data_parallel_size) +
                                   " needs device cpu: replicas are not placed on several devices, got " + *device);
    }
    if (!known->has_value()) *known = engine->info();
    return engine;
  };
  return EngineGroup::Create(std::move(factory), options);
}

}  // namespace fastllm::api
