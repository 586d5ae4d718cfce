#include "runtime/runner/logit_probe.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "runtime/runner/make_runner.h"

namespace fastllm::runtime {
namespace {

constexpr int32_t kBlockSize = 16;

class LocalLogitProbe : public LogitProbe {
 public:
  explicit LocalLogitProbe(std::unique_ptr<StepRunner> runner) : runner_(std::move(runner)) {}

  int32_t vocab_size() const override { return runner_->config().vocab_size; }

  Result<std::vector<float>> Logits(const std::vector<TokenId>& tokens, int32_t chunk) override {
    if (chunk < 1) return Status::InvalidArgument("chunk is " + std::to_string(chunk) + "; must be at least 1");
    std::vector<float> logits;
    const auto total = static_cast<int32_t>(tokens.size());
    for (int32_t done = 0; done < total;) {
      const int32_t count = std::min(chunk, total - done);
      FASTLLM_RETURN_IF_ERROR(runner_->ExecuteForLogits(MakePlan(tokens, done, count), &logits));
      done += count;
    }
    return logits;
  }

 private:
  // The first step of a sequence describes it and removes the one before; all its blocks come at once.
  StepPlan MakePlan(const std::vector<TokenId>& tokens, int32_t done, int32_t count) {
    StepPlan plan;
    if (done == 0) {
      if (id_ != 0) plan.removed.push_back(id_);
      NewSequence s;
      s.id = ++id_;
      s.tokens = tokens;
      s.num_prompt_tokens = static_cast<int32_t>(tokens.size());
      std::vector<BlockId> blocks((tokens.size() + kBlockSize - 1) / kBlockSize);
      std::iota(blocks.begin(), blocks.end(), 1);
      s.block_ids.push_back(std::move(blocks));
      plan.added.push_back(std::move(s));
    } else {
      plan.diffs.push_back({id_, done, {{}}});
    }
    plan.rows.push_back({id_, count, done + count == static_cast<int32_t>(tokens.size())});
    plan.total_tokens = count;
    return plan;
  }

  std::unique_ptr<StepRunner> runner_;
  RequestId id_ = 0;
};

}  // namespace

Result<std::unique_ptr<LogitProbe>> LogitProbe::Create(const std::string& model_path, int32_t num_threads,
                                                       const LogitProbeOptions& o) {
  FASTLLM_ASSIGN_OR_RETURN(ModelSource source, OpenModel(model_path, "auto"));
  RunnerOptions options;
  options.sched.max_model_len = source.config.max_position_embeddings;
  options.sched.max_num_batched_tokens = source.config.max_position_embeddings;
  options.sched.max_num_seqs = 1;
  options.kv.block_size = kBlockSize;
  options.kv.num_blocks = (source.config.max_position_embeddings + kBlockSize - 1) / kBlockSize + 1;
  options.num_threads = num_threads;
  options.placement.device = o.device == "cuda" ? ops::Device::kCuda : ops::Device::kCpu;
  options.placement.dtype = o.dtype == "bfloat16"  ? ops::DType::kBF16
                            : o.dtype == "float16" ? ops::DType::kF16
                                                   : ops::DType::kF32;
  options.placement.attention_backend = AttentionBackendOf(o.attention_backend);
  options.enforce_eager = true;
  options.keep_quantized = o.cpu_precision != "float32";
  FASTLLM_ASSIGN_OR_RETURN(
      options.linear,
      ChooseLinearMethod(o.quantization.empty() ? std::nullopt : std::optional(o.quantization), source));
  options.quantize_int8 = o.quantization == "int8";
  options.kv_dtype = KvDType(o.kv_cache_dtype, UsesQuantized(source, options.keep_quantized, options.quantize_int8));
  FASTLLM_ASSIGN_OR_RETURN(std::unique_ptr<StepRunner> runner,
                           MakeStepRunner(std::move(source), options, nullptr, o.device_runner));
  return std::unique_ptr<LogitProbe>(std::make_unique<LocalLogitProbe>(std::move(runner)));
}

}  // namespace fastllm::runtime
