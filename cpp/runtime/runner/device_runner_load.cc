// Loading: weights, buffers, the dry step, the KV cache.
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <exception>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "ops/contract/fp8.h"
#include "ops/table/device.h"
#include "runtime/device/runtime_ops.h"
#include "runtime/models/base/registry.h"
#include "runtime/models/base/weight_map.h"
#include "runtime/nn/talk.h"
#include "runtime/runner/device_runner.h"
#include "runtime/runner/kv_scales.h"
#include "runtime/runner/runner_checks.h"
#include "runtime/tensor/tensors.h"

namespace fastllm::runtime {
namespace {

// About two megabytes for each of the graphs of a model with a few hundred launches a step.
constexpr int64_t kGraphReserveBytes = int64_t{256} << 20;
constexpr int64_t kGraphMinFreeBytes = int64_t{64} << 20;
constexpr int32_t kMostPrefillGraphs = 48;  // of which at most 18 are captured ahead

Status CheckFp8Limits(const ModelConfig& c, const ops::DeviceApi& device) {
  const int32_t capability = device.compute_capability();
  if (capability != 90) {
    return Status::Unimplemented("quantization is fp8; it needs a GPU of compute capability 9.0, " +
                                 std::string(device.name()) + " has " + std::to_string(capability / 10) + "." +
                                 std::to_string(capability % 10));
  }
  const std::pair<const char*, int64_t> sizes[] = {
      {"hidden_size", c.hidden_size},
      {"intermediate_size", c.intermediate_size},
      {"num_attention_heads * head_dim", int64_t{c.num_heads} * c.head_dim},
      {"num_key_value_heads * head_dim", int64_t{c.num_kv_heads} * c.head_dim}};
  for (const auto& [name, size] : sizes) {
    if (size % ops::kFp8Multiple == 0) continue;
    return Status::Unimplemented("quantization is fp8; " + std::string(name) + " is " + std::to_string(size) +
                                 ", on a GPU it must be a multiple of " + std::to_string(ops::kFp8Multiple));
  }
  return Status::Ok();
}

// Limits of the kernels of a device, which the CPU does not have.
Status CheckDeviceLimits(const ModelConfig& c, const RunnerOptions& o, const ops::DeviceApi& device) {
  if (o.placement.device == ops::Device::kCpu) return Status::Ok();
  if (o.linear.kind == LinearKind::kFp8) FASTLLM_RETURN_IF_ERROR(CheckFp8Limits(c, device));
  if (o.kv.block_size < 16 || !std::has_single_bit(static_cast<uint32_t>(o.kv.block_size))) {
    return Status::InvalidArgument("block_size is " + std::to_string(o.kv.block_size) +
                                   "; on this device it must be a power of two of at least 16");
  }
  return Status::Ok();
}

}  // namespace

DeviceRunner::DeviceRunner(ModelConfig config, ModelShare share, const RunnerOptions& options,
                           const ops::DeviceApi& device)
    : device_(device), batch_(MakeBatchLimits(config, options)) {
  net_.config = std::move(config);
  net_.share = std::move(share);
  net_.ranks = options.ranks;
  if (net_.ranks.host != nullptr) {
    net_.rehearsal = std::make_shared<Rehearsal>(net_.ranks.tensor);
    net_.ranks.tensor = net_.rehearsal;
  }
  net_.placement = options.placement;
  // On a device the cache is of the type of the model, or of 8 bits.
  net_.kv_dtype = options.kv_dtype == ops::DType::kF8E4M3 ? options.kv_dtype : options.placement.dtype;
  net_.scratch = Scratch(options.placement);
  net_.gather_slot = net_.scratch.Reserve("gathered", net_.config.hidden_size);
  context_.scratch = &net_.scratch;
  context_.op.num_threads = options.num_threads;
  context_.op.stream = device_.CreateStream();
}

DeviceRunner::~DeviceRunner() {
  const ops::Device device = net_.placement.device;
  try {
    device_.Synchronize(context_.op.stream);
  } catch (const std::exception&) {
    // The failure that led here has been reported by the step that met it.
  }
  graphs_.reset();
  tallies_.reset();
  for (const Slot& slot : ring_.slots) {
    if (slot.event != nullptr) device_.DestroyEvent(slot.event);
    if (slot.stage != nullptr) device_.FreePinned(slot.stage);
    if (slot.tokens != nullptr) device_.FreePinned(slot.tokens);
    if (slot.logprobs != nullptr) device_.FreePinned(slot.logprobs);
  }
  // All memory on the device is given back here: the next engine of the process sizes itself by what is free.
  buffers_ = Buffers{};
  net_ = Net();
  try {
    ReleaseStream(device, context_.op.stream);
  } catch (const std::exception&) {
    // As above.
  }
  device_.DestroyStream(context_.op.stream);
}

Status DeviceRunner::Load(const TensorSource* tensors, const RunnerOptions& options) {
  const ops::OpTable& table = RuntimeOps();
  const Placement& placement = net_.placement;
  const ModelEntry* entry = BuiltinModels().FindArchitecture(net_.config.architecture);
  if (entry == nullptr) {
    return Status::Unimplemented("architecture \"" + net_.config.architecture +
                                 "\" is not known; known: " + BuiltinModels().Architectures());
  }
  Builder builder(table, placement, options.sched.max_model_len, net_.share.layers, &net_.params, &net_.scratch,
                  net_.ranks, options.linear);
  net_.model = entry->build(net_.config, builder);
  ops_.gather = builder.Op<ops::GatherRowsFn>(ops::OpId::kGatherRows);
  FASTLLM_RETURN_IF_ERROR(builder.status());
  FASTLLM_ASSIGN_OR_RETURN(
      ops_.feed, table.Resolve<ops::FeedTokensFn>({ops::OpId::kFeedTokens, placement.device, ops::DType::kF32}));
  FASTLLM_ASSIGN_OR_RETURN(
      ops_.keep, table.Resolve<ops::KeepTokensFn>({ops::OpId::kKeepTokens, placement.device, ops::DType::kF32}));
  FASTLLM_ASSIGN_OR_RETURN(ops_.sample,
                           table.Resolve<ops::SampleFn>({ops::OpId::kSample, placement.device, ops::DType::kF32}));
  FASTLLM_ASSIGN_OR_RETURN(
      ops_.count, table.Resolve<ops::CountTokensFn>({ops::OpId::kCountTokens, placement.device, ops::DType::kF32}));
  if (options.logprobs_mode == LogprobsMode::kRawLogprobs) {
    FASTLLM_ASSIGN_OR_RETURN(
        ops_.logprobs, table.Resolve<ops::LogprobsFn>({ops::OpId::kLogprobs, placement.device, ops::DType::kF32}));
  }
  const auto query = [&placement](ops::OpId op) {
    return ops::OpQuery{op, placement.device, placement.dtype, 0, 0, placement.attention_backend};
  };
  const auto plan = table.Resolve<ops::AttentionPlanFn>(query(ops::OpId::kAttentionPlan));
  const auto bound = table.Resolve<ops::AttentionBoundFn>(query(ops::OpId::kAttentionBound));
  if (plan.ok() && bound.ok()) {
    ops_.plan = *plan;
    ops_.bound = *bound;
  }
  WeightTarget target{placement, &table, context_.op};
  target.layers = net_.share.layers;
  if (tensors == nullptr) return FillDummyWeights(static_cast<uint64_t>(options.seed), target, net_.params);
  return LoadWeights(*tensors, entry->weights, net_.config.gguf_names, target, net_.params);
}

std::unique_ptr<StepGraphs> DeviceRunner::MakeGraphs() const {
  const BatchLimits& l = batch_.limits();
  GraphLimits limits{l.max_num_seqs, l.max_num_batched_tokens, kGraphMinFreeBytes, kMostPrefillGraphs};
  if (net_.ranks.host != nullptr) limits.all_say = [this](bool yes) { return AllSay(yes); };
  return std::make_unique<StepGraphs>(device_, context_.op.stream, limits);
}

// Whether all ranks of the tensor group say yes; throws when the group is broken.
bool DeviceRunner::AllSay(bool yes) const {
  Communicator* const host = net_.ranks.host.get();
  if (host == nullptr) return yes;
  const char own = yes ? 1 : 0;
  std::vector<char> all(static_cast<size_t>(host->size()));
  ThrowIfError(host->AllGather(context_.op, &own, all.data(), 1, CommType::kByte));
  return std::ranges::find(all, 0) == all.end();
}

void DeviceRunner::AllocateBuffers() {
  const BatchLimits& l = batch_.limits();
  const ops::AttentionBound bound = Bound(l.max_num_seqs + 1, l.max_num_batched_tokens);
  ring_.stage_bytes = MaxStageBytes(l, bound.record_ints);
  const auto ints = net_.placement.Options(at::kInt);
  const auto bytes = net_.placement.Options(at::kByte);
  buffers_.stage = Empty({ring_.stage_bytes}, bytes);
  buffers_.ids = Empty({l.max_num_batched_tokens}, ints);
  buffers_.block_table = Empty({l.max_num_seqs + 1, l.max_blocks_per_seq()}, ints);
  buffers_.last_tokens = Empty({batch_.num_slots()}, ints);
  buffers_.sampled = Empty({l.max_num_seqs}, ints);
  buffers_.logprobs = Empty({LogprobBytes(l.max_num_seqs)}, bytes);
  buffers_.workspace = Empty({bound.workspace_bytes}, bytes);
  void* const stream = context_.op.stream;
  device_.Zero(buffers_.workspace.data_ptr(), static_cast<size_t>(bound.workspace_bytes), stream);
  device_.Zero(buffers_.last_tokens.data_ptr(), buffers_.last_tokens.nbytes(), stream);
  device_.Zero(buffers_.block_table.data_ptr(), buffers_.block_table.nbytes(), stream);
  for (Slot& slot : ring_.slots) {
    slot.stage = static_cast<char*>(device_.AllocatePinned(static_cast<size_t>(ring_.stage_bytes)));
    slot.tokens = static_cast<int32_t*>(device_.AllocatePinned(sizeof(int32_t) * l.max_num_seqs));
    slot.logprobs = static_cast<char*>(device_.AllocatePinned(static_cast<size_t>(LogprobBytes(l.max_num_seqs))));
    slot.event = device_.CreateEvent();
  }
}

// K and V of each layer are [num_blocks, num_kv_heads, block_size, head_dim]. Not zeroed: nothing reads what no token
// has written.
Status DeviceRunner::AllocateKv(int32_t num_blocks, const TensorSource* tensors) {
  const ModelConfig& c = net_.share.config;
  const int32_t block_size = batch_.limits().block_size;
  const int64_t bytes = KvBytesPerBlock(c, block_size, net_.kv_dtype) * num_blocks;
  const int64_t free_bytes = device_.memory().free_bytes;
  if (net_.placement.device != ops::Device::kCpu && bytes > free_bytes) {
    return Status::ResourceExhausted("the KV cache of " + std::to_string(num_blocks) + " blocks needs " +
                                     std::to_string(bytes) + " bytes of device memory; " + std::to_string(free_bytes) +
                                     " are free");
  }
  net_.kv_layers.clear();
  buffers_.kv = at::Tensor();
  buffers_.kv = Empty({bytes}, net_.placement.Options(at::kByte));
  char* p = static_cast<char*>(buffers_.kv.data_ptr());
  const int64_t half = bytes / c.num_layers / 2;
  for (int32_t layer = 0; layer < c.num_layers; ++layer, p += 2 * half) {
    net_.kv_layers.push_back({p, p + half, num_blocks, c.num_kv_heads, block_size, c.head_dim, net_.kv_dtype});
  }
  context_.kv_layers = net_.kv_layers.data();
  return SetKvScales(tensors, net_.share.layers.first, &net_.kv_layers);
}

DeviceMemoryUse DeviceRunner::MemoryUse(int64_t free_at_start) const {
  const ops::DeviceMemoryInfo memory = device_.memory();
  DeviceMemoryUse use;
  use.device = device_.name();
  use.total_bytes = memory.total_bytes;
  use.free_bytes_at_start = free_at_start;
  use.free_bytes = memory.free_bytes;
  use.weight_bytes = ParamBytes(net_.params, net_.placement);
  use.activation_bytes = net_.scratch.bytes();
  for (const at::Tensor* t : {&buffers_.stage, &buffers_.ids, &buffers_.block_table, &buffers_.last_tokens,
                              &buffers_.sampled, &buffers_.logprobs, &buffers_.workspace}) {
    use.staging_bytes += static_cast<int64_t>(t->nbytes());
  }
  use.other_bytes = free_at_start - memory.free_bytes - use.weight_bytes - use.activation_bytes - use.staging_bytes;
  use.graph_reserve_bytes = graphs_ == nullptr ? 0 : kGraphReserveBytes;
  use.tally_reserve_bytes = TokenTallies::DeviceBytes(batch_);
  return use;
}

Result<std::unique_ptr<DeviceRunner>> DeviceRunner::Create(ModelSource source, const RunnerOptions& options,
                                                           PhaseSeconds* phases) {
  const ops::DeviceApi* device = options.device != nullptr ? options.device : ops::FindDevice(options.placement.device);
  if (device == nullptr) return Status::Unimplemented("this build or machine has no such device");
  FASTLLM_RETURN_IF_ERROR(CheckRunnerOptions(source.config, options));
  if (options.ranks.topology.sizes.pipeline > 1) {
    return Status::Unimplemented("pipeline_parallel_size is " + std::to_string(options.ranks.topology.sizes.pipeline) +
                                 "; the runner of devices has one stage");
  }
  FASTLLM_ASSIGN_OR_RETURN(ModelShare share, ShareOf(source.config, options.ranks.topology));
  FASTLLM_RETURN_IF_ERROR(CheckDeviceLimits(share.config, options, *device));
  try {
    const c10::InferenceMode inference;
    PhaseTimer timer(phases);
    const int64_t free_at_start = device->memory().free_bytes;
    std::unique_ptr<DeviceRunner> runner(new DeviceRunner(source.config, std::move(share), options, *device));
    FASTLLM_ASSIGN_OR_RETURN(
        Sampler sampler, Sampler::Create(RuntimeOps(), ops::Device::kCpu, source.config.vocab_size,
                                         options.sched.max_num_seqs, options.logprobs_mode, options.logits_processors));
    runner->host_sampler_ = std::make_unique<Sampler>(std::move(sampler));
    FASTLLM_RETURN_IF_ERROR(runner->Load(source.tensors.get(), options));
    device->Synchronize(runner->context_.op.stream);
    timer.Lap("load_weights");
    if (!options.enforce_eager) runner->graphs_ = runner->MakeGraphs();
    runner->AllocateBuffers();
    FASTLLM_RETURN_IF_ERROR(runner->AllocateKv(1, source.tensors.get()));
    runner->Rehearse();
    timer.Lap("dry_step");
    KvConfig kv = options.kv;
    if (options.size_kv) {
      FASTLLM_ASSIGN_OR_RETURN(kv, options.size_kv(runner->MemoryUse(free_at_start)));
    }
    runner->batch_.SetNumBlocks(kv.num_blocks);
    FASTLLM_RETURN_IF_ERROR(runner->AllocateKv(kv.num_blocks, source.tensors.get()));
    device->Synchronize(runner->context_.op.stream);
    if (runner->net_.rehearsal != nullptr) {
      runner->RehearseTallies();
      runner->net_.rehearsal->GoLive();
    }
    timer.Lap("kv_cache");
    runner->CaptureAhead();
    timer.Lap("graphs");
    return runner;
  } catch (const StatusError& e) {
    return e.status();
  } catch (const std::exception& e) {
    return Status::Internal(std::string("loading the model failed: ") + e.what());
  }
}

}  // namespace fastllm::runtime
