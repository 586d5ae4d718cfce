// Whole decoder layers of Llama-3.1-8B at few rows: the fused products with attention between them, as the model chains
// them. Each of the layers has weights of its own, so that they come from memory. What a change of one op gains is
// decided here: kernels that wait for each other, share the L2 and start ahead of their predecessor's end cost other
// than alone.
#include <array>
#include <cmath>
#include <numeric>

#include "bench/ops/cuda_bench.h"
#include "ops/contract/attention.h"
#include "ops/contract/attention_plan.h"
#include "ops/contract/fused_linear.h"

namespace fastllm::cuda_bench {
namespace {

constexpr DType kType = DType::kBF16;
constexpr int kHidden = 4096, kInter = 14336, kHeads = 32, kKvHeads = 8, kDim = 128, kLayers = 3, kBlock = 16;
constexpr int kQkv = (kHeads + 2 * kKvHeads) * kDim;

// What a layer reads and writes beside its weights.
struct Activations {
  Buffer residual, scaled, squares, gain, q, attended, act, table, k, v, positions, slots;
};

class Layers {
 public:
  Layers(Bench& b, int rows, int ctx)
      : b_(b),
        m_(rows),
        ctx_(ctx),
        blocks_((ctx + kBlock) / kBlock),
        d_{RandomBuffer(size_t(rows) * kHidden, kType, 1),
           RandomBuffer(size_t(rows) * kHidden, kType, 2),
           cuda_check::Upload(std::vector<float>(size_t(rows) * ops::SquareParts(kHidden), 16.0f)),
           RandomBuffer(kHidden, kType, 3),
           RandomBuffer(size_t(rows) * kQkv, kType, 4),
           RandomBuffer(size_t(rows) * kHidden, kType, 5),
           Buffer(size_t(rows) * kInter * 2),
           RandomBuffer(size_t(ctx + 1) * kDim, DType::kF32, 6),
           RandomBuffer(size_t(rows) * blocks_ * kBlock * kKvHeads * kDim, kType, 7),
           RandomBuffer(size_t(rows) * blocks_ * kBlock * kKvHeads * kDim, kType, 8),
           {},
           {}} {
    const size_t sizes[] = {size_t(kQkv) * kHidden, size_t(kHidden) * kHidden, size_t(2) * kInter * kHidden,
                            size_t(kHidden) * kInter};
    for (auto& layer : weights_) {
      for (int i = 0; i < 4; ++i) {
        layer[i] = RandomBuffer(sizes[i], kType, 10 + i);
        bytes_ += 2.0 * sizes[i] / kLayers;
      }
    }
    Plan();
  }

  void Time() {
    const auto norm_qkv = b_.Get<ops::NormQkvFn>(OpId::kNormQkv, kType);
    const auto linear_add = b_.Get<ops::LinearAddFn>(OpId::kLinearAdd, kType);
    const auto norm_linear = b_.Get<ops::NormLinearFn>(OpId::kNormLinear, kType);
    const auto attention = b_.Get<ops::PagedAttentionFn>(OpId::kPagedAttention, kType, kDim, ops::Backend::kFastllm);
    const std::string shape = "M=" + std::to_string(m_) + " ctx=" + std::to_string(ctx_);
    b_.Time({"layer", shape, bytes_}, kLayers, [&](int i, void* stream) {
      const ops::OpContext ctx{stream, 1};
      norm_qkv(Qkv(i), ctx);
      attention(attention_, ctx);
      linear_add(O(i), ctx);
      norm_linear(GateUp(i), ctx);
      linear_add(Down(i), ctx);
    });
  }

 private:
  ops::NormedRows In() const { return {d_.scaled.get(), d_.squares.as<float>(), 1e-5f}; }
  ops::NextWeight Next(int layer, int i) const {
    const Buffer& w = weights_[layer % kLayers][i];
    return {w.get(), static_cast<int64_t>(w.bytes())};
  }
  ops::LinearAddParams O(int i) const {
    return {d_.residual.get(),
            d_.attended.get(),
            weights_[i][1].get(),
            nullptr,
            d_.gain.get(),
            d_.scaled.get(),
            d_.squares.as<float>(),
            m_,
            kHidden,
            kHidden,
            Next(i, 2)};
  }
  ops::LinearAddParams Down(int i) const {
    return {d_.residual.get(), d_.act.get(),    weights_[i][3].get(),   nullptr,
            d_.gain.get(),     d_.scaled.get(), d_.squares.as<float>(), m_,
            kHidden,           kInter,          Next(i + 1, 0)};
  }
  ops::NormLinearParams GateUp(int i) const {
    return {d_.act.get(), In(), weights_[i][2].get(), nullptr, m_, kInter, kHidden, true, Next(i, 3)};
  }
  ops::NormQkvParams Qkv(int i) const {
    ops::NormQkvParams p{In(), weights_[i][0].get(), nullptr, kHidden, {}, Next(i, 1)};
    p.rope.cache = attention_.cache;
    p.rope.q = d_.q.get();
    p.rope.cos_sin = d_.table.as<float>();
    p.rope.positions = d_.positions.as<int32_t>();
    p.rope.slot_mapping = d_.slots.as<int64_t>();
    p.rope.q_stride = kQkv;
    p.rope.num_tokens = m_;
    p.rope.num_q_heads = kHeads;
    p.rope.rotary_dim = kDim;
    return p;
  }
  void Plan() {
    std::vector<int32_t> start(m_ + 1), length(m_, ctx_), table(size_t(m_) * blocks_), positions(m_, ctx_ - 1);
    std::vector<int64_t> slots(m_);
    std::iota(start.begin(), start.end(), 0);
    std::iota(table.begin(), table.end(), 0);
    for (int i = 0; i < m_; ++i) slots[i] = int64_t{i} * blocks_ * kBlock + ctx_ - 1;
    const auto bound = b_.Get<ops::AttentionBoundFn>(
        OpId::kAttentionBound, kType, 0, ops::Backend::kFastllm)({m_, m_, kHeads, kKvHeads, kDim, kType, kType});
    std::vector<int32_t> record(bound.record_ints);
    const auto size = b_.Get<ops::AttentionPlanFn>(OpId::kAttentionPlan, kType, 0, ops::Backend::kFastllm)(
        {start.data(), length.data(), m_, kHeads, kKvHeads, kDim, kType, kType, 0, 0.0f, 0, 0, record.data(),
         bound.record_ints, kBlock, blocks_});
    plan_ = {cuda_check::Upload(record), cuda_check::Upload(start), cuda_check::Upload(length),
             cuda_check::Upload(table), Buffer(bound.workspace_bytes)};
    plan_[4].Zero();
    d_.positions = cuda_check::Upload(positions);
    d_.slots = cuda_check::Upload(slots);
    ops::PagedAttentionParams& p = attention_;
    p.cache = {d_.k.get(), d_.v.get(), m_ * blocks_, kKvHeads, kBlock, kDim, kType};
    p.out = d_.attended.get();
    p.q = d_.q.get();
    p.query_start = plan_[1].as<int32_t>();
    p.seq_len = plan_[2].as<int32_t>();
    p.block_table = plan_[3].as<int32_t>();
    p.q_stride = kQkv;
    p.num_tokens = p.num_seqs = m_;
    p.max_blocks = blocks_;
    p.num_q_heads = kHeads;
    p.scale = 1.0f / std::sqrt(float(kDim));
    p.plan = plan_[0].as<int32_t>();
    p.decode_workers = size.decode_workers;
    p.prefill_tiles = size.prefill_tiles;
    p.workspace = plan_[4].get();
    p.workspace_bytes = bound.workspace_bytes;
  }

  Bench& b_;
  int m_, ctx_, blocks_;
  double bytes_ = 0.0;
  Activations d_;
  std::array<std::array<Buffer, 4>, kLayers> weights_;
  std::array<Buffer, 5> plan_;
  ops::PagedAttentionParams attention_;
};

}  // namespace

void BenchLayer(Bench& b) {
  if (!b.Wanted("layer")) return;
  for (const int m : {1, 2, 4, 8}) Layers(b, m, 512).Time();
  Layers(b, 1, 8192).Time();
}

}  // namespace fastllm::cuda_bench
