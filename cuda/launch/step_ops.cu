// Launchers of what a step begins and ends with, and of dummy weights.
#include <algorithm>

#include "cuda/launch/launch.h"
#include "cuda/step/step.cuh"

namespace fastllm::cuda {
namespace {

using ops::DType;
using ops::OpContext;
using ops::OpId;

void FeedTokens(const ops::FeedTokensParams& p, const OpContext& ctx) {
  if (p.num_tokens <= 0 && p.num_seqs <= 0) return;
  FeedTokensKernel<<<1 + p.num_seqs, 256, 0, StreamOf(ctx)>>>(p);
  CheckLaunch("feed_tokens");
}

void KeepTokens(const ops::KeepTokensParams& p, const OpContext& ctx) {
  if (p.num_rows <= 0) return;
  KeepTokensKernel<<<CeilDiv(p.num_rows, 256), 256, 0, StreamOf(ctx)>>>(p);
  CheckLaunch("keep_tokens");
}

void CountTokens(const ops::CountTokensParams& p, const OpContext& ctx) {
  if (p.num_segments <= 0) return;
  CountTokensKernel<<<p.num_segments, 1024, 0, StreamOf(ctx)>>>(p);
  CheckLaunch("count_tokens");
}

template <typename T>
void RandomFill(const ops::RandomFillParams& p, const OpContext& ctx) {
  if (p.count <= 0) return;
  const int64_t blocks = std::min<int64_t>((p.count + 255) / 256, int64_t{CurrentDevice().multiprocessors} * 16);
  RandomFillKernel<T><<<static_cast<unsigned>(blocks), 256, 0, StreamOf(ctx)>>>(
      static_cast<T*>(p.out), p.key + static_cast<uint64_t>(p.first), p.count, p.mean, p.scale);
  CheckLaunch("random_fill");
}

}  // namespace

void RegisterStepOps(ops::OpTable& table) {
  AddOp(table, OpId::kFeedTokens, DType::kF32, "cuda.feed_tokens.f32", &FeedTokens);
  AddOp(table, OpId::kKeepTokens, DType::kF32, "cuda.keep_tokens.f32", &KeepTokens);
  AddOp(table, OpId::kCountTokens, DType::kF32, "cuda.count_tokens.f32", &CountTokens);
  AddOp(table, OpId::kRandomFill, DType::kF32, "cuda.random_fill.f32", &RandomFill<float>);
  AddOp(table, OpId::kRandomFill, DType::kF16, "cuda.random_fill.f16", &RandomFill<__half>);
  AddOp(table, OpId::kRandomFill, DType::kBF16, "cuda.random_fill.bf16", &RandomFill<bf16>);
}

}  // namespace fastllm::cuda
