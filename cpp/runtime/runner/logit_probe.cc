#include "runtime/runner/logit_probe.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <utility>

#include "runtime/comm/memory_hub.h"
#include "runtime/device/device_ranks.h"
#include "runtime/runner/make_runner.h"
#include "runtime/runner/rank_team.h"

namespace fastllm::runtime {
namespace {

constexpr int32_t kBlockSize = 16;

// For a step, and for a wait of ranks that join.
constexpr std::chrono::seconds kStepTimeout{60};
// Some ranks may have loaded long before others, for which they wait.
constexpr std::chrono::seconds kLoadTimeout{600};

class RankedLogitProbe : public LogitProbe {
 public:
  // A runner for each thread of the team, made there.
  static Result<std::unique_ptr<LogitProbe>> Create(const ModelSource& source, const RunnerOptions& options,
                                                    const LogitProbeOptions& o) {
    const ParallelSizes sizes{o.tensor_parallel_size, o.pipeline_parallel_size};
    FASTLLM_ASSIGN_OR_RETURN(auto hub, MemoryHub::Create(sizes, kStepTimeout));
    MemoryHub* const meeting = hub.get();
    std::unique_ptr<RankedLogitProbe> probe(new RankedLogitProbe(std::move(hub), sizes.world()));
    const DeviceRanksOptions join{options.placement, options.sched.max_num_batched_tokens,
                                  source.config.hidden_size * ops::DTypeSize(options.placement.dtype), kStepTimeout};
    const auto ranks = std::make_shared<std::vector<Ranks>>();
    for (int32_t rank = 0; rank < sizes.world(); ++rank) ranks->push_back(probe->team_.hub().RanksOf(rank));
    probe->output_rank_ = ranks->front().topology.output_rank();
    // All that these use is their own, for a rank that never comes back.
    const auto meet = [announce = probe->team_.announcer(), ranks, join](int32_t rank) -> Status {
      Ranks& own = (*ranks)[rank];
      if (join.placement.device == ops::Device::kCpu || own.topology.sizes.tensor == 1) return Status::Ok();
      own.host = own.tensor;
      FASTLLM_RETURN_IF_ERROR(JoinDeviceRanks(join, &own, announce));
      announce(own.tensor);
      return Status::Ok();
    };
    const auto load = [runners = probe->runners_, ranks, sizes, source, options,
                       device_runner = o.device_runner](int32_t rank) -> Status {
      RunnerOptions own = options;
      own.ranks = (*ranks)[rank];
      own.num_threads = std::max(1, options.num_threads / sizes.world());
      FASTLLM_ASSIGN_OR_RETURN((*runners)[rank], MakeStepRunner(source, own, nullptr, device_runner));
      return Status::Ok();
    };
    FASTLLM_RETURN_IF_ERROR(probe->team_.Run(meet, kLoadTimeout));
    meeting->SetTimeout(kLoadTimeout);  // of steps the team keeps the time
    FASTLLM_RETURN_IF_ERROR(probe->team_.Run(load, kLoadTimeout, /*farewell=*/kLoadTimeout));
    probe->vocab_size_ = (*probe->runners_)[0]->config().vocab_size;
    return std::unique_ptr<LogitProbe>(std::move(probe));
  }

  // A runner ends where it lived.
  ~RankedLogitProbe() override {
    const auto end = [runners = runners_](int32_t rank) {
      (*runners)[rank].reset();
      return Status::Ok();
    };
    static_cast<void>(team_.Run(end, kStepTimeout));
  }

  int32_t vocab_size() const override { return vocab_size_; }

  Result<std::vector<float>> Logits(const std::vector<TokenId>& tokens, int32_t chunk) override {
    if (chunk < 1) return Status::InvalidArgument("chunk is " + std::to_string(chunk) + "; must be at least 1");
    const auto logits = std::make_shared<std::vector<float>>();
    const auto total = static_cast<int32_t>(tokens.size());
    for (int32_t done = 0; done < total;) {
      const int32_t count = std::min(chunk, total - done);
      const StepPlan plan = MakePlan(tokens, done, count);
      const auto step = [runners = runners_, output = output_rank_, logits, plan](int32_t rank) {
        std::vector<float> unread;
        return (*runners)[rank]->ExecuteForLogits(plan, rank == output ? logits.get() : &unread);
      };
      FASTLLM_RETURN_IF_ERROR(team_.Run(step, kStepTimeout));
      done += count;
    }
    return std::move(*logits);
  }

 private:
  using Runners = std::vector<std::unique_ptr<StepRunner>>;

  RankedLogitProbe(std::unique_ptr<MemoryHub> hub, int32_t world)
      : team_(std::move(hub), world), runners_(std::make_shared<Runners>(world)) {}

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

  RankTeam team_;
  const std::shared_ptr<Runners> runners_;  // by rank; also of those that are left behind
  int32_t output_rank_ = 0;
  int32_t vocab_size_ = 0;
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
  options.linear.batch_invariant = o.batch_invariant;
  options.quantize_int8 = o.quantization == "int8";
  options.kv_dtype = KvDType(o.kv_cache_dtype, UsesQuantized(source, options.keep_quantized, options.quantize_int8));
  return RankedLogitProbe::Create(source, options, o);
}

}  // namespace fastllm::runtime
