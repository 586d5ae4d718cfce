// FlashInfer as a backend of paged_attention: checks, and the record (attention/flashinfer_plan.h) taken apart. Empty
// without FASTLLM_FLASHINFER.
#include <bit>
#include <string>

#include "core/base/check.h"
#include "cuda/attention/flashinfer_plan.h"
#include "cuda/launch/attention.h"
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

FlashInferDecode DecodeOf(const ops::PagedAttentionParams& p, const FlashInferLayout& o, int32_t works) {
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
  const int64_t bytes = out_bytes + rows * p.num_q_heads * 4;
  FASTLLM_CHECK(bytes <= p.workspace_bytes, "paged_attention: the workspace is " + std::to_string(p.workspace_bytes) +
                                                " bytes, " + std::to_string(bytes) + " are needed");
  d.partial_out = p.workspace;
  d.partial_lse = reinterpret_cast<float*>(static_cast<char*>(p.workspace) + out_bytes);
  return d;
}

FlashInferPrefill PrefillOf(const ops::PagedAttentionParams& p, const FlashInferLayout& o) {
  return {p.plan + o.item_start, p.plan + o.heads, p.plan + o.tiles,  p.plan + o.q_start,
          p.plan + o.pages,      p.plan + o.q_len, p.plan + o.kv_len, p.plan + o.seqs};
}

template <int kHeadDim>
void PagedAttention(const ops::PagedAttentionParams& p, const ops::OpContext& ctx) {
  CheckAttentionShape(p, kHeadDim);
  FASTLLM_CHECK(p.window == 0 && !(p.logit_softcap > 0.0f),
                "paged_attention: FlashInfer's kernels are compiled without window and logit_softcap");
  const int32_t works = p.decode_workers & ~kFlashInferSplit;
  const auto o = FlashInferLayout::Of(works, p.prefill_tiles, p.num_seqs, p.num_tokens,
                                      CurrentDevice().multiprocessors);
  const FlashInferBatch batch = BatchOf(p, o);
  // Decode first: merging may zero rows of others, which prefill then writes.
  if (works > 0) Check(RunFlashInferDecode<kHeadDim>(batch, DecodeOf(p, o, works), StreamOf(ctx)));
  if (p.prefill_tiles > 0) Check(RunFlashInferPrefill<kHeadDim>(batch, PrefillOf(p, o), StreamOf(ctx)));
}

template <typename Fn>
void Add(ops::OpTable& table, OpId op, const char* name, Fn fn, int32_t head_dim = 0) {
  const uint32_t features = op == OpId::kPagedAttention ? ops::kFeatureGqa : 0u;
  // Below ours, which is as fast or faster at every shape measured: bench/RESULTS.md.
  table.Register({op, ops::Device::kCuda, DType::kBF16, head_dim, features, /*priority=*/-1, name,
                  reinterpret_cast<ops::AnyFn>(fn), ops::Backend::kFlashInfer});
}

}  // namespace

void RegisterFlashInferOps(ops::OpTable& table) {
  Add(table, OpId::kPagedAttention, "cuda.paged_attention.bf16.d64.flashinfer", &PagedAttention<64>, 64);
  Add(table, OpId::kPagedAttention, "cuda.paged_attention.bf16.d128.flashinfer", &PagedAttention<128>, 128);
  Add(table, OpId::kPagedAttention, "cuda.paged_attention.bf16.d256.flashinfer", &PagedAttention<256>, 256);
  Add(table, OpId::kAttentionPlan, "cuda.attention_plan.bf16.flashinfer", &Plan);
  Add(table, OpId::kAttentionBound, "cuda.attention_bound.bf16.flashinfer", &Bound);
}
#else
void RegisterFlashInferOps(ops::OpTable&) {}
#endif

}  // namespace fastllm::cuda
