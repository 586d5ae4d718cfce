#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "bench/ops/cuda_bench.h"
#include "ops/contract/attention.h"
#include "ops/contract/attention_plan.h"

namespace fastllm::cuda_bench {
namespace {

struct Shape {
  int q_heads, kv_heads, dim, batch, query_len, ctx, block_size;
  DType type = DType::kBF16;
  int window = 0;
  float softcap = 0.0f;
  ops::Backend backend = ops::Backend::kFastllm;
  bool fp8_cache = false;

  DType kv_type() const { return fp8_cache ? DType::kF8E4M3 : type; }
};

struct Device {
  Buffer k, v, q, out, table, record, query_start, seq_len, workspace;
};

// Buffers of one shape, `sets` times over in one pool of blocks.
class AttentionBench {
 public:
  AttentionBench(Bench& bench, const Shape& shape) : b_(bench), s_(shape) {
    blocks_per_seq_ = (s_.ctx + s_.block_size - 1) / s_.block_size;
    const int positions = s_.window > 0 ? std::min(s_.ctx, s_.window + s_.query_len - 1) : s_.ctx;  // that are read
    kv_bytes_ = 2.0 * s_.batch * positions * s_.kv_heads * s_.dim * ops::DTypeSize(s_.kv_type());
    sets_ = SetsFor(kv_bytes_);
    const int blocks = blocks_per_seq_ * s_.batch * sets_;
    const size_t elements = static_cast<size_t>(blocks) * s_.kv_heads * s_.block_size * s_.dim;
    d_.k = RandomBuffer(elements, s_.kv_type(), 31);
    d_.v = RandomBuffer(elements, s_.kv_type(), 32);
    std::vector<int32_t> table(blocks);
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(3));
    d_.table = cuda_check::Upload(table);
    const int tokens = s_.batch * s_.query_len;
    stride_ = (s_.q_heads + 2 * s_.kv_heads) * s_.dim;
    d_.q = RandomBuffer(static_cast<size_t>(tokens) * stride_ * sets_, s_.type, 33);
    d_.out = Buffer(static_cast<size_t>(tokens) * s_.q_heads * s_.dim * sets_ * ops::DTypeSize(s_.type));
    Plan();
  }

  void Time(const char* op, const std::string& label, double reference_us) {
    const int tokens = s_.batch * s_.query_len;
    const double size = ops::DTypeSize(s_.type);
    double seen = 0.0;  // (query, position) pairs of a sequence
    for (int n = s_.ctx - s_.query_len + 1; n <= s_.ctx; ++n) seen += s_.window > 0 ? std::min(n, s_.window) : n;
    const double bytes = kv_bytes_ + 2.0 * tokens * s_.q_heads * s_.dim * size;
    const auto fn = b_.Get<ops::PagedAttentionFn>(OpId::kPagedAttention, s_.type, s_.dim, s_.backend);
    b_.Time({op, label, bytes, 4.0 * s_.batch * seen * s_.q_heads * s_.dim, reference_us}, sets_,
            [&](int set, void* stream) {
              ops::PagedAttentionParams p = params_;
              p.q = d_.q.as<char>() + static_cast<int64_t>(set) * tokens * stride_ * ops::DTypeSize(s_.type);
              p.out = d_.out.as<char>() +
                      static_cast<int64_t>(set) * tokens * s_.q_heads * s_.dim * ops::DTypeSize(s_.type);
              p.block_table = d_.table.as<int32_t>() + static_cast<int64_t>(set) * s_.batch * blocks_per_seq_;
              fn(p, {stream, 1});
            });
  }

 private:
  void Plan() {
    std::vector<int32_t> query_start(s_.batch + 1), seq_len(s_.batch, s_.ctx);
    for (int i = 0; i <= s_.batch; ++i) query_start[i] = i * s_.query_len;
    const auto bound = b_.Get<ops::AttentionBoundFn>(OpId::kAttentionBound, s_.type, 0, s_.backend)(
        {s_.batch, s_.batch * s_.query_len, s_.q_heads, s_.kv_heads, s_.dim, s_.type, s_.kv_type()});
    std::vector<int32_t> record(bound.record_ints);
    const auto size = b_.Get<ops::AttentionPlanFn>(OpId::kAttentionPlan, s_.type, 0, s_.backend)(
        {query_start.data(), seq_len.data(), s_.batch, s_.q_heads, s_.kv_heads, s_.dim, s_.type, s_.kv_type(),
         s_.window, s_.softcap, 0, 0, record.data(), bound.record_ints, s_.block_size, blocks_per_seq_});
    d_.record = cuda_check::Upload(record);
    d_.query_start = cuda_check::Upload(query_start);
    d_.seq_len = cuda_check::Upload(seq_len);
    d_.workspace = Buffer(bound.workspace_bytes);
    d_.workspace.Zero();
    params_.cache = {d_.k.get(), d_.v.get(),  blocks_per_seq_ * s_.batch * sets_, s_.kv_heads, s_.block_size,
                     s_.dim,     s_.kv_type()};
    params_.query_start = d_.query_start.as<int32_t>();
    params_.seq_len = d_.seq_len.as<int32_t>();
    params_.q_stride = stride_;
    params_.num_tokens = s_.batch * s_.query_len;
    params_.num_seqs = s_.batch;
    params_.max_blocks = blocks_per_seq_;
    params_.num_q_heads = s_.q_heads;
    params_.scale = 1.0f / std::sqrt(static_cast<float>(s_.dim));
    params_.window = s_.window;
    params_.logit_softcap = s_.softcap;
    params_.plan = d_.record.as<int32_t>();
    params_.decode_workers = size.decode_workers;
    params_.prefill_tiles = size.prefill_tiles;
    params_.workspace = d_.workspace.get();
    params_.workspace_bytes = bound.workspace_bytes;
  }

  Bench& b_;
  Shape s_;
  int sets_ = 0, blocks_per_seq_ = 0, stride_ = 0;
  double kv_bytes_ = 0.0;
  Device d_;
  ops::PagedAttentionParams params_;
};

// Ours, then FlashInfer's where the build has it for the shape.
void Both(Bench& b, const char* op, const std::string& label, Shape s, double reference_us) {
  AttentionBench(b, s).Time(op, label, reference_us);
  if (s.window > 0 || s.softcap > 0.0f || s.fp8_cache ||
      !b.Has(OpId::kPagedAttention, s.type, s.dim, ops::Backend::kFlashInfer))
    return;
  s.backend = ops::Backend::kFlashInfer;
  AttentionBench(b, s).Time(op, label + " flashinfer", reference_us);
}

void Decode(Bench& b, const char* model, const Shape& s, double reference_us) {
  Both(b, "decode",
       std::string(model) + " B=" + std::to_string(s.batch) + " ctx=" + std::to_string(s.ctx) +
           (s.block_size == 16 ? "" : " block " + std::to_string(s.block_size)) + (s.fp8_cache ? " fp8" : ""),
       s, reference_us);
}

}  // namespace

void BenchAttention(Bench& b) {
  // FA3 paged decode, vLLM 0.26, on the same GPU by the same method.
  const struct {
    int batch, ctx;
    double fa3_us;
  } kDecode[] = {{1, 1024, 11.99},   {1, 8192, 19.08}, {1, 32768, 43.76},  {8, 8192, 73.06},   {32, 1024, 42.26},
                 {32, 4096, 132.06}, {64, 1024, 75.8}, {64, 8192, 490.48}, {256, 1024, 283.34}};
  if (b.Wanted("decode")) {
    for (const auto& d : kDecode) Decode(b, "llama8b", {32, 8, 128, d.batch, 1, d.ctx, 16}, d.fa3_us);
    Decode(b, "llama8b", {32, 8, 128, 64, 1, 8192, 128}, 490.48);
    for (const auto& [batch, ctx] :
         {std::pair{1, 1024}, std::pair{64, 1024}, std::pair{64, 8192}, std::pair{256, 1024}}) {
      Decode(b, "llama8b", {32, 8, 128, batch, 1, ctx, 16, DType::kBF16, 0, 0.0f, ops::Backend::kFastllm, true}, 0.0);
    }
    for (const int batch : {1, 64}) Decode(b, "qwen3-30b", {32, 4, 128, batch, 1, 8192, 16}, 0.0);
    Decode(b, "qwen3-235b", {64, 4, 128, 1, 1, 4096, 16}, 0.0);
    Decode(b, "qwen3-235b", {64, 4, 128, 8, 1, 4096, 16}, 0.0);
    Decode(b, "qwen3-235b", {64, 4, 128, 64, 1, 1024, 16}, 0.0);
    Decode(b, "qwen3-235b", {64, 4, 128, 64, 1, 4096, 16}, 0.0);
    Decode(b, "glm4", {32, 2, 128, 64, 1, 4096, 16}, 0.0);
    Decode(b, "smollm2", {9, 3, 64, 64, 1, 2048, 16}, 0.0);
    Decode(b, "phi3-mini d96", {32, 32, 96, 16, 1, 2048, 16}, 0.0);
    Decode(b, "gemma d256", {8, 4, 256, 64, 1, 2048, 16}, 0.0);
    Decode(b, "gemma2 d256 softcap", {8, 4, 256, 64, 1, 2048, 16, DType::kBF16, 0, 50.0f}, 0.0);
    Decode(b, "mistral window 4096", {32, 8, 128, 64, 1, 8192, 16, DType::kBF16, 4096}, 0.0);
  }
  if (b.Wanted("prefill")) {
    const struct {
      const char* label;
      Shape shape;
    } kPrefill[] = {{"llama8b 1x128", {32, 8, 128, 1, 128, 128, 16}},
                    {"llama8b 1x1024", {32, 8, 128, 1, 1024, 1024, 16}},
                    {"llama8b 1x8192", {32, 8, 128, 1, 8192, 8192, 16}},
                    {"llama8b 1x32768", {32, 8, 128, 1, 32768, 32768, 16}},
                    {"llama8b 16x1024", {32, 8, 128, 16, 1024, 1024, 16}},
                    {"llama8b 8x8192", {32, 8, 128, 8, 8192, 8192, 16}},
                    {"llama8b 512 of 8192", {32, 8, 128, 1, 512, 8192, 16}},
                    {"llama8b 16 of 8192", {32, 8, 128, 1, 16, 8192, 16}},
                    {"llama8b 64 x 5 of 1024", {32, 8, 128, 64, 5, 1024, 16}},
                    {"llama8b 1x8192 block 128", {32, 8, 128, 1, 8192, 8192, 128}},
                    {"llama8b 1x8192 f16", {32, 8, 128, 1, 8192, 8192, 16, DType::kF16}},
                    {"llama1b d64 1x8192", {32, 8, 64, 1, 8192, 8192, 16}},
                    {"phi3-mini d96 1x4096", {32, 32, 96, 1, 4096, 4096, 16}},
                    {"gemma d256 1x4096", {8, 4, 256, 1, 4096, 4096, 16}},
                    {"gemma2 d256 1x4096 softcap", {8, 4, 256, 1, 4096, 4096, 16, DType::kBF16, 0, 50.0f}},
                    {"llama8b 1x8192 softcap", {32, 8, 128, 1, 8192, 8192, 16, DType::kBF16, 0, 50.0f}},
                    {"mistral 1x8192 window 4096", {32, 8, 128, 1, 8192, 8192, 16, DType::kBF16, 4096}},
                    {"gemma3 d256 1x8192 window 1024", {8, 4, 256, 1, 8192, 8192, 16, DType::kBF16, 1024}}};
    for (const auto& p : kPrefill) {
      if (b.Wanted(std::string("prefill ") + p.label)) Both(b, "prefill", p.label, p.shape, 0.0);
    }
  }
}

}  // namespace fastllm::cuda_bench
