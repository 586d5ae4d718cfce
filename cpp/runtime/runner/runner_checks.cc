#include "runtime/runner/runner_checks.h"

#include <string>

namespace fastllm::runtime {

BatchLimits MakeBatchLimits(const ModelConfig& config, const RunnerOptions& o) {
  BatchLimits l;
  l.vocab_size = config.vocab_size;
  l.max_model_len = o.sched.max_model_len;
  l.max_num_seqs = o.sched.max_num_seqs;
  l.max_num_batched_tokens = o.sched.max_num_batched_tokens;
  l.num_blocks = o.kv.num_blocks;
  l.block_size = o.kv.block_size;
  return l;
}

Status CheckRunnerOptions(const ModelConfig& config, const RunnerOptions& o) {
  const auto at_least = [](const char* name, int64_t value, int64_t low) {
    return value >= low ? Status::Ok()
                        : Status::InvalidArgument(std::string(name) + " is " + std::to_string(value) +
                                                  "; must be at least " + std::to_string(low));
  };
  if (!o.size_kv) FASTLLM_RETURN_IF_ERROR(at_least("num_blocks", o.kv.num_blocks, 2));
  FASTLLM_RETURN_IF_ERROR(at_least("block_size", o.kv.block_size, 1));
  FASTLLM_RETURN_IF_ERROR(at_least("max_num_seqs", o.sched.max_num_seqs, 1));
  FASTLLM_RETURN_IF_ERROR(at_least("max_num_batched_tokens", o.sched.max_num_batched_tokens, 1));
  FASTLLM_RETURN_IF_ERROR(at_least("num_threads", o.num_threads, 1));
  FASTLLM_RETURN_IF_ERROR(at_least("max_model_len", o.sched.max_model_len, 1));
  if (o.sched.max_model_len > config.max_position_embeddings) {
    return Status::InvalidArgument("max_model_len is " + std::to_string(o.sched.max_model_len) +
                                   "; the model has positions for " + std::to_string(config.max_position_embeddings));
  }
  if (o.kv.groups.size() != 1 || o.kv.groups[0].kind != KvGroupKind::kFull) {
    return Status::Unimplemented("the runner has one KV group of full attention; asked for " +
                                 std::to_string(o.kv.groups.size()) + " group(s)");
  }
  return Status::Ok();
}

}  // namespace fastllm::runtime
