#include <numeric>

#include "bench/ops/cuda_bench.h"
#include "ops/contract/embedding.h"
#include "ops/contract/rms_norm.h"
#include "ops/contract/rope_kv_write.h"
#include "ops/contract/silu_mul.h"

namespace fastllm::cuda_bench {
namespace {

constexpr DType kType = DType::kBF16;
constexpr int kHidden = 4096, kInner = 14336, kVocab = 128256;

std::string Tokens(int n) { return "T=" + std::to_string(n); }

void Embedding(Bench& b, int tokens) {
  if (!b.Wanted("embedding")) return;
  const Buffer table = RandomBuffer(static_cast<size_t>(kVocab) * kHidden, kType, 1);
  const double bytes = 2.0 * tokens * kHidden * 2;
  const int sets = SetsFor(bytes);
  std::vector<int32_t> ids(static_cast<size_t>(tokens) * sets);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 40503u % kVocab);
  const Buffer d_ids = cuda_check::Upload(ids);
  const Buffer out(static_cast<size_t>(tokens) * sets * kHidden * 2);
  const auto fn = b.Get<ops::EmbeddingFn>(OpId::kEmbedding, kType);
  b.Time({"embedding", Tokens(tokens), bytes}, sets, [&](int s, void* stream) {
    fn({out.as<char>() + static_cast<size_t>(s) * tokens * kHidden * 2, table.get(), d_ids.as<int32_t>() + s * tokens,
        tokens, kHidden, kVocab},
       {stream, 1});
  });
}

void RmsNorm(Bench& b, int tokens) {
  if (!b.Wanted("rms_norm")) return;
  const double bytes = 4.0 * tokens * kHidden * 2;
  const int sets = SetsFor(bytes);
  const size_t one = static_cast<size_t>(tokens) * kHidden;
  const Buffer x = RandomBuffer(one * sets, kType, 2), residual = RandomBuffer(one * sets, kType, 3);
  const Buffer weight = RandomBuffer(kHidden, kType, 4), out(one * sets * 2);
  const auto fn = b.Get<ops::RmsNormFn>(OpId::kRmsNorm, kType);
  b.Time({"rms_norm+residual", Tokens(tokens), bytes}, sets, [&](int s, void* stream) {
    fn({out.as<char>() + s * one * 2, x.as<char>() + s * one * 2, residual.as<char>() + s * one * 2, weight.get(),
        tokens, kHidden, 1e-5f},
       {stream, 1});
  });
}

void Rope(Bench& b, int tokens) {
  if (!b.Wanted("rope_kv_write")) return;
  constexpr int kQ = 32, kKv = 8, kDim = 128, kStride = (kQ + 2 * kKv) * kDim;
  const double bytes = 2.0 * tokens * kStride * 2 + 512.0 * tokens;
  const int sets = SetsFor(bytes);
  const size_t one = static_cast<size_t>(tokens) * kStride;
  const Buffer qkv = RandomBuffer(one * sets, kType, 5), table = RandomBuffer(size_t{8192} * kDim, DType::kF32, 6);
  const int blocks = tokens * sets / 16 + 2;
  const Buffer kc(static_cast<size_t>(blocks) * kKv * 16 * kDim * 2), vc(kc.bytes());
  std::vector<int32_t> positions(static_cast<size_t>(tokens) * sets);
  std::vector<int64_t> slots(positions.size());
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i % 8192);
  std::iota(slots.begin(), slots.end(), 16);
  const Buffer d_positions = cuda_check::Upload(positions), d_slots = cuda_check::Upload(slots);
  const auto fn = b.Get<ops::RopeKvWriteFn>(OpId::kRopeKvWrite, kType);
  b.Time({"rope_kv_write", Tokens(tokens), bytes}, sets, [&](int s, void* stream) {
    ops::RopeKvWriteParams p;
    char* q = qkv.as<char>() + s * one * 2;
    p.cache = {kc.get(), vc.get(), blocks, kKv, 16, kDim};
    p.q = q;
    p.k = q + kQ * kDim * 2;
    p.v = q + (kQ + kKv) * kDim * 2;
    p.cos_sin = table.as<float>();
    p.positions = d_positions.as<int32_t>() + s * tokens;
    p.slot_mapping = d_slots.as<int64_t>() + s * tokens;
    p.q_stride = p.k_stride = p.v_stride = kStride;
    p.num_tokens = tokens;
    p.num_q_heads = kQ;
    p.rotary_dim = kDim;
    fn(p, {stream, 1});
  });
}

void SiluMul(Bench& b, int tokens) {
  if (!b.Wanted("silu_mul")) return;
  const double bytes = 3.0 * tokens * kInner * 2;
  const int sets = SetsFor(bytes);
  const size_t one = static_cast<size_t>(tokens) * kInner;
  const Buffer in = RandomBuffer(2 * one * sets, kType, 7), out(one * sets * 2);
  const auto fn = b.Get<ops::SiluMulFn>(OpId::kSiluMul, kType);
  b.Time({"silu_mul", Tokens(tokens), bytes}, sets, [&](int s, void* stream) {
    fn({out.as<char>() + s * one * 2, in.as<char>() + s * one * 4, tokens, kInner}, {stream, 1});
  });
}

}  // namespace

void BenchRows(Bench& b) {
  for (const int tokens : {1, 64, 256, 8192}) Embedding(b, tokens);
  for (const int tokens : {1, 64, 256, 8192}) RmsNorm(b, tokens);
  for (const int tokens : {1, 64, 256, 8192}) Rope(b, tokens);
  for (const int tokens : {1, 64, 256, 8192}) SiluMul(b, tokens);
}

}  // namespace fastllm::cuda_bench
