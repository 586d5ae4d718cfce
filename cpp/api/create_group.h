// Engines of one model behind one handle: data_parallel_size > 1, or one that is made anew when it has failed.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "fastllm/config.h"
#include "fastllm/engine.h"
#include "fastllm/logits_processor.h"
#include "fastllm/status.h"
#include "fastllm/token_table.h"

namespace fastllm::api {

using CreateOne = std::function<Result<std::unique_ptr<Engine>>(const EngineConfig&, std::optional<TokenTable>,
                                                                std::vector<std::shared_ptr<LogitsProcessor>>)>;

// An EngineGroup of engines that `create` makes, each with an equal share of the cores and of the memory for the KV
// cache, and a recording of its own. kInvalidArgument for what a group does not have: logits processors of the host,
// KV events; kUnimplemented on a device other than the CPU.
Result<std::unique_ptr<Engine>> CreateGroup(const EngineConfig& config, std::optional<TokenTable> tokens,
                                            bool has_logits_processors, CreateOne create);

// The configuration of one replica. `known`: of a replica that is there already, null for the first.
EngineConfig ReplicaConfig(const EngineConfig& config, int32_t replica, int32_t usable_cores, int64_t available_bytes,
                           const EngineInfo* known);

}  // namespace fastllm::api
