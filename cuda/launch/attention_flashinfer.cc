// FlashInfer as a backend of paged_attention: checks, and the record (attention/flashinfer_plan.h) taken apart. Empty
// without FASTLLM_FLASHINFER.
#include <bit>
#include <string>

#include "core/base/check.h"
#include "cuda/attention/flashinfer_plan.h"
#include "cuda/launch/attention.h"
#include "cuda/launch/attention_select.h"
#include "cuda/launch/flashinfer.h"
#include "ops/contract/attention.h"

namespace fastllm::cuda {

#ifdef FASTLLM_FLASHINFER
namespace {

using ops::DType;
using ops::OpId;

ops::AttentionPlanSize Plan(const ops::AttentionPlanParams& p) {
  return MakeFlashInferPlan(p, CurrentDevice().multiprocessors);
}
ops::AttentionBound Bound(const ops::AttentionBoundParams& p) {
  return FlashInferBound(p, CurrentDevice().multiprocessors);
}

void Check(cudaError_t e) {
  FASTLLM_CHECK(e == cudaSuccess, std::string("paged_attention (FlashInfer): ") + cudaGetErrorString(e));
}

FlashInferBatch BatchOf(const ops::PagedAttentionParams& p, const FlashInferLayout& o) {
  FlashInferBatch b;
  b.q = p.q;
  b.k = p.cache.k;
  b.v = p.cache.v;
  b.out = p.out;
  b.query_start = p.query_start;
  b.block_table = p.block_table;
  b.page_start = p.plan + o.page_start;
  b.last_page = p.plan + o.last_page;
  b.q_stride = p.q_stride;
  b.num_tokens = p.num_tokens;
  b.num_seqs = p.num_seqs;
  b.num_q_heads = p.num_q_heads;
  b.num_kv_heads = p.cache.num_kv_heads;
  b.page_size = p.cache.block_size;
  b.scale = p.scale;
  return b;
}

// workspace: that the partial outputs may take.
FlashInferDecode DecodeOf(const ops::PagedAttentionParams& p, const FlashInferLayout& o, int32_t works,
                          char* workspace) {
  FlashInferDecode d;
  d.requests = p.plan + o.requests;
  d.q_tiles = p.plan + o.q_tiles;
  d.kv_tiles = p.plan + o.kv_tiles;
  d.out_start = p.plan + o.out_start;
  d.merge_start = p.plan + o.merge_start;
  d.chunk = p.plan + o.chunk;
  d.rows = p.plan + o.rows;
  d.valid = reinterpret_cast<const bool*>(p.plan + o.valid);
  d.works = works;
  if ((p.decode_workers & kFlashInferSplit) == 0) return d;
  const int64_t rows = FlashInferPartialRows(p.num_seqs, p.cache.num_kv_heads, CurrentDevice().multiprocessors);
  const int64_t out_bytes = rows * p.num_q_heads * p.cache.head_dim * 2;
  const int64_t bytes = workspace - static_cast<char*>(p.workspace) + out_bytes + rows * p.num_q_heads * 4;
  FASTLLM_CHECK(bytes <= p.workspace_bytes, "paged_attention: the workspace is " + std::to_string(p.workspace_bytes) +
                                                " bytes, " + std::to_string(bytes) + " are needed");
  d.partial_out = workspace;
  d.partial_lse = reinterpret_cast<float*>(workspace + out_bytes);
  return d;
}

FlashInferPrefill PrefillOf(const ops::PagedAttentionParams& p, const FlashInferLayout& o) {
  return {p.plan + o.item_start, p.plan + o.heads, p.plan + o.tiles,  p.plan + o.q_start,
          p.plan + o.pages,      p.plan + o.q_len, p.plan + o.kv_len, p.plan + o.seqs};
}

void CheckHopper() {
  FASTLLM_CHECK(PrefillOnHopper(),
                "paged_attention: FlashInfer's kernels are compiled for compute capability 9.0, the "
                "device has " +
                    std::to_string(CurrentDevice().compute_capability));
}

bool IsFp8(const ops::PagedAttentionParams& p) { return p.cache.dtype == DType::kF8E4M3; }
bool IsFp8(const ops::AttentionPlanParams& p) { return p.kv_dtype == DType::kF8E4M3; }
bool IsFp8(const ops::AttentionBoundParams& p) { return p.kv_dtype == DType::kF8E4M3; }

template <int kHeadDim>
void PagedAttention(const ops::PagedAttentionParams& p, const ops::OpContext& ctx) {
  CheckAttentionShape(p, kHeadDim);
  CheckHopper();
  FASTLLM_CHECK(p.window == 0 && !(p.logit_softcap > 0.0f),
                "paged_attention: FlashInfer's kernels are compiled without window and logit_softcap");
  FASTLLM_CHECK(!IsFp8(p), "paged_attention: FlashInfer's kernels are compiled without a KV cache in fp8");
  const int32_t works = p.decode_workers & ~kFlashInferSplit;
  const auto o =
      FlashInferLayout::Of(works, p.prefill_tiles, p.num_seqs, p.num_tokens, CurrentDevice().multiprocessors);
  const FlashInferBatch batch = BatchOf(p, o);
  // Decode first: merging may zero rows of others, which prefill then writes.
  if (works > 0) {
    const FlashInferDecode decode = DecodeOf(p, o, works, static_cast<char*>(p.workspace));
    Check(RunFlashInferDecode<kHeadDim>(batch, decode, StreamOf(ctx)));
  }
  if (p.prefill_tiles > 0) Check(RunFlashInferPrefill<kHeadDim>(batch, PrefillOf(p, o), StreamOf(ctx)));
}

// Whether a step is shared: its decodes on FlashInfer, the rest on ours. The record then holds FlashInfer's, without
// prefill, and ours behind it, without decodes.
template <typename Params>
bool Shared(const Params& p, int32_t head_dim, int32_t num_kv_heads) {
  return DecodeOnFlashInfer(head_dim, p.num_q_heads / num_kv_heads) && PrefillOnHopper() && !IsFp8(p);
}
template <typename Params>
bool SharedStep(const Params& p, int32_t head_dim, int32_t num_kv_heads) {
  return p.window == 0 && !(p.logit_softcap > 0.0f) && Shared(p, head_dim, num_kv_heads);
}

// Our part of a shared step.
PlanDevice PrefillDevice(int32_t head_dim) { return {0, PlanDeviceFor(head_dim, DType::kBF16).prefill_workers}; }

ops::AttentionPlanSize SharedPlan(const ops::AttentionPlanParams& p) {
  if (!SharedStep(p, p.head_dim, p.num_kv_heads)) {
    ops::AttentionPlanParams own = p;
    const PlanDevice device = PlanDeviceFor(p.head_dim, p.kv_dtype);
    if ((p.decode_workers & kFlashInferSplit) != 0) own.decode_workers = device.decode_workers;  // of SharedBound()
    return MakePlan(own, device);
  }
  ops::AttentionPlanParams decodes = p;
  decodes.prefill_tiles = 0;
  ops::AttentionPlanSize size = MakeFlashInferPlan(decodes, CurrentDevice().multiprocessors, /*with_prefill=*/false);
  ops::AttentionPlanParams rest = p;
  rest.decode_workers = 0;
  rest.record += size.record_ints;
  rest.record_capacity -= size.record_ints;
  const ops::AttentionPlanSize ours = MakePlan(rest, PrefillDevice(p.head_dim));
  size.record_ints += ours.record_ints;
  size.prefill_tiles = ours.prefill_tiles;
  return size;
}

// For either way, as the variants of the layers are not known here.
ops::AttentionBound SharedBound(const ops::AttentionBoundParams& p) {
  const ops::AttentionBound ours = PlanBound(p, PlanDeviceFor(p.head_dim, p.kv_dtype));
  if (!Shared(p, p.head_dim, p.num_kv_heads)) return ours;
  ops::AttentionBound b = FlashInferBound(p, CurrentDevice().multiprocessors, /*with_prefill=*/false);
  b.record_ints += ours.record_ints;
  b.workspace_bytes += ours.workspace_bytes;
  b.prefill_tiles = ours.prefill_tiles;
  return b;
}

template <int kHeadDim>
void SharedAttention(const ops::PagedAttentionParams& p, const ops::OpContext& ctx) {
  if (!SharedStep(p, kHeadDim, p.cache.num_kv_heads)) return OwnAttention<kHeadDim>(p, ctx);
  CheckAttentionShape(p, kHeadDim);
  const int32_t works = p.decode_workers & ~kFlashInferSplit;
  const auto o = FlashInferLayout::Of(works, 0, p.num_seqs, p.num_tokens, CurrentDevice().multiprocessors);
  if (works > 0) {
    const int64_t ours = PrefillWorkspace(PrefillDevice(kHeadDim).prefill_workers, kHeadDim).total();
    const FlashInferDecode decode = DecodeOf(p, o, works, static_cast<char*>(p.workspace) + ours);
    Check(RunFlashInferDecode<kHeadDim>(BatchOf(p, o), decode, StreamOf(ctx)));
  }
  ops::PagedAttentionParams rest = p;
  rest.decode_workers = 0;
  rest.plan += o.total;
  OwnAttention<kHeadDim>(rest, ctx);
}

// priority: forced only (-1), or before ours (1).
template <typename Fn>
void Add(ops::OpTable& table, OpId op, const char* name, Fn fn, ops::Backend backend, int32_t head_dim = 0,
         uint32_t features = 0) {
  table.Register({op, ops::Device::kCuda, DType::kBF16, head_dim, features,
                  backend == ops::Backend::kFlashInfer ? -1 : 1, name, reinterpret_cast<ops::AnyFn>(fn), backend});
}

}  // namespace

void RegisterFlashInferOps(ops::OpTable& table) {
  constexpr auto kForced = ops::Backend::kFlashInfer, kChosen = ops::Backend::kAny;
  constexpr uint32_t kGqa = ops::kFeatureGqa;
  Add(table, OpId::kPagedAttention, "cuda.paged_attention.bf16.d64.flashinfer", &PagedAttention<64>, kForced, 64, kGqa);
  Add(table, OpId::kPagedAttention, "cuda.paged_attention.bf16.d128.flashinfer", &PagedAttention<128>, kForced, 128,
      kGqa);
  Add(table, OpId::kPagedAttention, "cuda.paged_attention.bf16.d256.flashinfer", &PagedAttention<256>, kForced, 256,
      kGqa);
  Add(table, OpId::kAttentionPlan, "cuda.attention_plan.bf16.flashinfer", &Plan, kForced);
  Add(table, OpId::kAttentionBound, "cuda.attention_bound.bf16.flashinfer", &Bound, kForced);
  // Head dims that no rule of attention_select.h names have ours alone.
  Add(table, OpId::kPagedAttention, "cuda.paged_attention.bf16.d128.shared", &SharedAttention<128>, kChosen, 128,
      kGqa | ops::kFeatureSlidingWindow | ops::kFeatureSoftcap);
  Add(table, OpId::kAttentionPlan, "cuda.attention_plan.bf16.shared", &SharedPlan, kChosen);
  Add(table, OpId::kAttentionBound, "cuda.attention_bound.bf16.shared", &SharedBound, kChosen);
}
#else
void RegisterFlashInferOps(ops::OpTable&) {}
#endif

}  // namespace fastllm::cuda
