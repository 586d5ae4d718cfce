// Launchers of rope, kv_write and the two fused.
#include <algorithm>
#include <string>

#include "core/base/check.h"
#include "cuda/kv/kv_write.cuh"
#include "cuda/launch/launch.h"
#include "cuda/launch/overlap.cuh"
#include "cuda/rope/rope.cuh"
#include "ops/contract/rope.h"
#include "ops/contract/rope_kv_write.h"

namespace fastllm::cuda {
namespace {

using ops::DType;
using ops::OpContext;
using ops::OpId;

constexpr int32_t kMaxTokens = 65535;  // of blockIdx.y

// `tokens` tokens from `first` on, with the pointers moved there.
template <typename T, typename KV>
RopeArgs<T, KV> From(RopeArgs<T, KV> a, int32_t first) {
  a.q += first * a.q_stride;
  a.k += first * a.k_stride;
  a.positions += first;
  if (a.slots != nullptr) {
    a.v += first * a.v_stride;
    a.slots += first;
  }
  return a;
}

template <int kLanes, int kJobs, typename T, typename KV>
void LaunchJobs(RopeArgs<T, KV> a, int32_t tokens, cudaStream_t stream) {
  a.early = tokens >= kOverlappedRows;
  const dim3 grid(CeilDiv(CeilDiv(a.q_heads + a.kv_heads + a.v_heads, kJobs) * kLanes, 128), tokens);
  const auto kernel =
      a.interleaved ? &RopeKernel<T, KV, kLanes, kJobs, true> : &RopeKernel<T, KV, kLanes, kJobs, false>;
  LaunchRows(kernel, tokens, grid, 128, stream, "rope", a);
}

template <int kLanes, typename T, typename KV>
void LaunchPacked(const RopeArgs<T, KV>& a, int32_t tokens, cudaStream_t stream) {
  if constexpr (sizeof(KV) == sizeof(T)) {  // the rarer kind has fewer instances
    if (tokens >= 64) return LaunchJobs<kLanes, 2>(a, tokens, stream);
  }
  LaunchJobs<kLanes, 1>(a, tokens, stream);
}

template <typename T, typename KV>
bool Packed(const RopeArgs<T, KV>& a) {
  constexpr int32_t kSize = Pack<T>::kSize;
  const auto strides = a.q_stride | a.k_stride | a.v_stride;
  return a.rotary_dim == a.head_dim && a.head_dim % (2 * kSize) == 0 && a.head_dim / 2 / kSize <= 32 &&
         strides % kSize == 0 && Aligned16(a.q) && Aligned16(a.k) && Aligned16(a.v) && Aligned16(a.k_cache) &&
         Aligned16(a.v_cache) && Aligned16(a.q_weight) && Aligned16(a.k_weight) && Aligned16(a.cos_sin);
}

template <typename T, typename KV>
void Launch(const RopeArgs<T, KV>& all, int32_t num_tokens, const OpContext& ctx, const char* op) {
  if (num_tokens <= 0 || all.head_dim <= 0) return;
  const bool packed = Packed(all);
  const int32_t lanes = all.head_dim / 2 / Pack<T>::kSize;
  for (int32_t first = 0; first < num_tokens; first += kMaxTokens) {
    const int32_t tokens = std::min(kMaxTokens, num_tokens - first);
    const RopeArgs<T, KV> a = From(all, first);
    if (!packed) {
      const dim3 grid(CeilDiv(a.q_heads + a.kv_heads + a.v_heads, 4), tokens);
      RopeScalarKernel<T, KV><<<grid, 128, 0, StreamOf(ctx)>>>(a);
    } else if (lanes <= 4) {
      LaunchPacked<4>(a, tokens, StreamOf(ctx));
    } else if (lanes <= 8) {
      LaunchPacked<8>(a, tokens, StreamOf(ctx));
    } else if (lanes <= 16) {
      LaunchPacked<16>(a, tokens, StreamOf(ctx));
    } else {
      LaunchPacked<32>(a, tokens, StreamOf(ctx));
    }
  }
  CheckLaunch(op);
}

template <typename T>
void Rope(const ops::RopeParams& p, const OpContext& ctx) {
  RopeArgs<T> a;
  a.q = static_cast<T*>(p.q);
  a.k = static_cast<T*>(p.k);
  a.cos_sin = p.cos_sin;
  a.positions = p.positions;
  a.q_stride = p.q_stride;
  a.k_stride = p.k_stride;
  a.q_heads = p.num_q_heads;
  a.kv_heads = p.num_kv_heads;
  a.head_dim = p.head_dim;
  a.rotary_dim = p.rotary_dim;
  a.interleaved = p.interleaved;
  Launch(a, p.num_tokens, ctx, "rope");
}

template <typename T, typename KV>
void RopeInto(const ops::RopeKvWriteParams& p, const OpContext& ctx) {
  const ops::KvCacheView& c = p.cache;
  RopeArgs<T, KV> a;
  a.q = static_cast<T*>(p.q);
  a.k = static_cast<T*>(const_cast<void*>(p.k));  // only read when slots is set
  a.v = static_cast<const T*>(p.v);
  a.q_weight = static_cast<const T*>(p.q_norm_weight);
  a.k_weight = static_cast<const T*>(p.k_norm_weight);
  a.cos_sin = p.cos_sin;
  a.positions = p.positions;
  a.slots = p.slot_mapping;
  a.k_cache = static_cast<KV*>(c.k);
  a.v_cache = static_cast<KV*>(c.v);
  a.k_inverse = 1.0f / c.k_scale;
  a.v_inverse = 1.0f / c.v_scale;
  a.q_stride = p.q_stride;
  a.k_stride = p.k_stride;
  a.v_stride = p.v_stride;
  a.num_slots = static_cast<int64_t>(c.num_blocks) * c.block_size;
  a.q_heads = p.num_q_heads;
  a.kv_heads = a.v_heads = c.num_kv_heads;
  a.head_dim = c.head_dim;
  a.rotary_dim = p.rotary_dim;
  a.block_size = c.block_size;
  a.eps = p.eps;
  a.interleaved = p.interleaved;
  FASTLLM_CHECK(a.slots != nullptr, "rope_kv_write: slot_mapping is null");
  Launch(a, p.num_tokens, ctx, "rope_kv_write");
}

template <typename T>
void RopeKvWrite(const ops::RopeKvWriteParams& p, const OpContext& ctx) {
  if (p.cache.dtype == DType::kF8E4M3) {
    RopeInto<T, fp8>(p, ctx);
  } else {
    RopeInto<T, T>(p, ctx);
  }
}

template <typename T, typename Unit>
void LaunchKvWrite(const ops::KvWriteParams& p, cudaStream_t stream) {
  constexpr int64_t kElements = sizeof(Unit) / sizeof(T);
  const ops::KvCacheView& c = p.cache;
  KvWriteArgs<Unit> a;
  a.k_cache = static_cast<Unit*>(c.k);
  a.v_cache = static_cast<Unit*>(c.v);
  a.k_stride = p.k_stride / kElements;
  a.v_stride = p.v_stride / kElements;
  a.num_slots = static_cast<int64_t>(c.num_blocks) * c.block_size;
  a.kv_heads = c.num_kv_heads;
  a.block_size = c.block_size;
  a.head_units = static_cast<int32_t>(c.head_dim / kElements);
  for (int32_t first = 0; first < p.num_tokens; first += kMaxTokens) {
    a.k = static_cast<const Unit*>(p.k) + first * a.k_stride;
    a.v = static_cast<const Unit*>(p.v) + first * a.v_stride;
    a.slots = p.slot_mapping + first;
    const dim3 grid(CeilDiv(int64_t{a.kv_heads} * a.head_units, 256), std::min(kMaxTokens, p.num_tokens - first));
    KvWriteKernel<Unit><<<grid, 256, 0, stream>>>(a);
  }
}

template <typename T>
void LaunchKvWriteFp8(const ops::KvWriteParams& p, cudaStream_t stream) {
  const ops::KvCacheView& c = p.cache;
  KvWriteFp8Args<T> a;
  a.k_cache = static_cast<fp8*>(c.k);
  a.v_cache = static_cast<fp8*>(c.v);
  a.k_stride = p.k_stride;
  a.v_stride = p.v_stride;
  a.num_slots = static_cast<int64_t>(c.num_blocks) * c.block_size;
  a.k_inverse = 1.0f / c.k_scale;
  a.v_inverse = 1.0f / c.v_scale;
  a.kv_heads = c.num_kv_heads;
  a.block_size = c.block_size;
  a.head_dim = c.head_dim;
  for (int32_t first = 0; first < p.num_tokens; first += kMaxTokens) {
    a.k = static_cast<const T*>(p.k) + first * a.k_stride;
    a.v = static_cast<const T*>(p.v) + first * a.v_stride;
    a.slots = p.slot_mapping + first;
    const dim3 grid(CeilDiv(int64_t{a.kv_heads} * a.head_dim, 256), std::min(kMaxTokens, p.num_tokens - first));
    KvWriteFp8Kernel<T><<<grid, 256, 0, stream>>>(a);
  }
}

template <typename T>
void KvWrite(const ops::KvWriteParams& p, const OpContext& ctx) {
  constexpr int32_t kSize = Pack<T>::kSize;
  const ops::KvCacheView& c = p.cache;
  if (p.num_tokens <= 0 || c.num_kv_heads <= 0 || c.head_dim <= 0) return;
  const bool packed = c.head_dim % kSize == 0 && (p.k_stride | p.v_stride) % kSize == 0 && Aligned16(p.k) &&
                      Aligned16(p.v) && Aligned16(c.k) && Aligned16(c.v);
  if (c.dtype == DType::kF8E4M3) {
    LaunchKvWriteFp8<T>(p, StreamOf(ctx));
  } else if (packed) {
    LaunchKvWrite<T, uint4>(p, StreamOf(ctx));
  } else {
    LaunchKvWrite<T, T>(p, StreamOf(ctx));
  }
  CheckLaunch("kv_write");
}

template <typename T>
void RegisterFor(ops::OpTable& table, DType dtype, const char* rope, const char* kv_write, const char* fused) {
  AddOp(table, OpId::kRope, dtype, rope, &Rope<T>, ops::kFeatureInterleavedRope);
  AddOp(table, OpId::kKvWrite, dtype, kv_write, &KvWrite<T>);
  AddOp(table, OpId::kRopeKvWrite, dtype, fused, &RopeKvWrite<T>, ops::kFeatureInterleavedRope);
}

}  // namespace

void RegisterRopeOps(ops::OpTable& table) {
  RegisterFor<float>(table, DType::kF32, "cuda.rope.f32", "cuda.kv_write.f32", "cuda.rope_kv_write.f32");
  RegisterFor<__half>(table, DType::kF16, "cuda.rope.f16", "cuda.kv_write.f16", "cuda.rope_kv_write.f16");
  RegisterFor<bf16>(table, DType::kBF16, "cuda.rope.bf16", "cuda.kv_write.bf16", "cuda.rope_kv_write.bf16");
}

}  // namespace fastllm::cuda
