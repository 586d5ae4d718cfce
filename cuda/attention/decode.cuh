// Paged attention of one query row per sequence: memory-bound, so everything serves the stream of K and V.
//
// Each warp streams its own tiles of 16 positions through a private ring of shared-memory stages (cp.async), with no
// barrier among warps until a (sequence, KV head) pair ends. The products run on tensor cores transposed,
//   S^T [16 positions, 8 heads] = K Q^T,   O^T [head_dim, 8 heads] += V^T P^T,
// so that the query heads of one KV head fill the narrow side (n = 8) of m16n8k16 and K and V are the wide operand,
// straight from their rows in memory. Softmax is online, in base 2. Work is cut by the plan (plan.h); the worker that
// finishes a cut pair last adds the parts up, in their order, so that the result does not depend on who was last.
#pragma once

#include "cuda/attention/decode_merge.cuh"
#include "cuda/common/launch_order.cuh"

namespace fastllm::cuda {

// early: launched while the kernel before runs, and the next one may start when a block's last tiles are on their way.
template <typename T, typename KV, int kHeadDim, int kHeadTiles, int kStages>
__global__ void __launch_bounds__(kDecodeWarps * 32, DecodeBlocksPerSm(kHeadDim))
    DecodeKernel(const DecodeArgs<T, KV> a, const bool early) {
  using Shape = DecodeShape<kHeadDim, kStages, sizeof(KV)>;
  extern __shared__ __align__(128) char shared[];
  const int warp = threadIdx.x >> 5;
  const DecodeWorker w = a.workers[blockIdx.x];
  if (w.units == 0) {
    WaitForPrevious();
    return;
  }
  const uint32_t ring = SharedAddress(shared) + warp * Shape::kWarpBytes;
  auto* shared_out = reinterpret_cast<float*>(shared + kDecodeWarps * Shape::kWarpBytes);

  // The record and the block table are from before the step. K and V are not, and no position of theirs is read before
  // the wait: a step may share a block that it fills itself.
  TileCursor<T, KV> load(a, w, warp);
  WaitForPrevious();
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) IssueTile<T, KV, kHeadDim>(load, ring + i * Shape::kStageBytes);

  DecodeState<kHeadDim, kHeadTiles> s;
  int32_t decode = w.decode, head = w.kv_head, first_unit = w.first_unit, left = w.units;
  uint32_t stage = 0;
  DecodeSequence seq = w.first;
  while (left > 0) {
    const int32_t units = min(seq.units - first_unit, left);
    const TileSpan span = SpanOf(a, seq, first_unit, units, warp);
    StartPair<T, KV>(s, a, seq.token, head);
    for (int32_t tile = span.begin; tile < span.end; tile += kDecodeWarps) {
      CopyAsyncWait<kStages - 2>();
      __syncwarp();
      const uint32_t next = stage == 0 ? kStages - 1 : stage - 1;
      IssueTile<T, KV, kHeadDim>(load, ring + next * Shape::kStageBytes);
      if (early && !load.valid) AllowNext();
      const int32_t end = seq.length - tile * kTileTokens;
      DoTile<T, KV>(s, ring + stage * Shape::kStageBytes, end - a.window, end, a);
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
    PairPart part{-1, static_cast<int32_t>(blockIdx.x), 1};
    if (first_unit > 0) {
      part = {2 * static_cast<int32_t>(blockIdx.x), w.owner, w.owner_parts};
    } else if (units < seq.units) {
      part = {2 * static_cast<int32_t>(blockIdx.x) + 1, static_cast<int32_t>(blockIdx.x), w.tail_parts};
    }
    T* out = a.out + seq.token * a.out_stride + static_cast<int64_t>(head) * a.group * kHeadDim;
    FinishPair<T, KV, kHeadDim, kHeadTiles, kStages>(s, a, part, out, shared_out);
    left -= units;
    first_unit = 0;
    if (++head == a.kv_heads) {
      head = 0;
      ++decode;
      if (left > 0) seq = a.decodes[decode];
    }
  }
}

}  // namespace fastllm::cuda
