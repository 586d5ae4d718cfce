// layer_chain [bf16|fp8] [rows...]: a decoder layer of Llama-3.1-8B in decode (norm, qkv, rope and KV write, attention
// at a context of 1024, o, norm, gate_up, down; with 8-bit weights the roundings too), several layers in a row with
// weights and caches from memory, in one graph. Prints the time of a layer as it is in the engine, without each of its
// kernels, and with the candidates of each product in turn, the others being the best so far: kernels that are launched
// ahead of their predecessor's end are worth what they bring there. The values are not checked here.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <numeric>
#include <random>

#include "bench/ops/gemm/cublas.h"
#include "bench/ops/gemm/data.h"
#include "bench/ops/gemm/fp8_product.h"
#include "bench/ops/gemm/variant.h"
#include "ops/contract/attention.h"
#include "ops/contract/attention_plan.h"
#include "ops/contract/dense_linear.h"
#include "ops/contract/rms_norm.h"
#include "ops/contract/rope_kv_write.h"
#include "ops/contract/silu_mul.h"
#include "tests/cuda/support.h"

namespace fastllm::gemm_bench {

void AddFew(Variants& all);

namespace {

using cuda_check::Buffer;
using cuda_check::Must;
using ops::DType;
using ops::OpId;

constexpr int kLayers = 4, kHidden = 4096, kInner = 14336, kHeads = 32, kKvHeads = 8, kDim = 128, kContext = 1024;
constexpr int kBlock = 16, kBlocksPerSeq = kContext / kBlock;
constexpr int kQkv = (kHeads + 2 * kKvHeads) * kDim;
struct Shape {
  const char* name;
  int n, k;
};
constexpr Shape kShapes[] = {
    {"qkv", kQkv, kHidden}, {"o", kHidden, kHidden}, {"gate_up", 2 * kInner, kHidden}, {"down", kHidden, kInner}};

// What may be left out of a layer.
enum Part { kNorm1, kQkvPart, kRope, kAttention, kRound, kO, kNorm2, kGateUp, kAct, kDown, kParts };
constexpr const char* kPartNames[] = {"norm", "qkv",  "rope",    "attention",     "round",
                                      "o",    "norm", "gate_up", "silu/rounding", "down"};
constexpr Part kProductParts[] = {kQkvPart, kO, kGateUp, kDown};

// What the launches read and write.
struct Data {
  Buffer workspace, weights[4], k, v, scales, gain, x, residual, attention, normed, qkv, gate_up, act, q, q_scale;
  Buffer plan, table_buffer, query_start, seq_len, positions, slots, cos_sin, attention_workspace;
};

// A product's candidate, ready for every layer.
struct Candidate {
  std::string name;
  bool gated = false;
  std::vector<Launch> layers;
  double us = 0.0;
};

class Chain {
 public:
  Chain(int rows, bool fp8) : rows_(rows), fp8_(fp8) {
    ops::RegisterCudaOps(table_);
    Must(cudaStreamCreate(&stream_), "stream");
    Must(cudaEventCreate(&begin_), "event");
    Must(cudaEventCreate(&end_), "event");
    d_.workspace = Buffer(64 << 20);
    d_.workspace.Zero();
    const size_t n = rows;
    for (int i = 0; i < 4; ++i) {
      const size_t one = static_cast<size_t>(kShapes[i].n) * kShapes[i].k;
      d_.weights[i] = Buffer(one * kLayers * (fp8 ? 1 : 2));
      if (fp8) {
        FillFp8(d_.weights[i].get(), one * kLayers, 1 + i, 90.0f, stream_);
      } else {
        FillRandom(d_.weights[i].get(), one * kLayers, 1 + i, 0.015f, stream_);
      }
    }
    const size_t cache = n * kLayers * kContext * kKvHeads * kDim;
    for (Buffer* b : {&d_.k, &d_.v}) {
      *b = Buffer(cache * 2);
      FillRandom(b->get(), cache, 9, 1.0f, stream_);
    }
    d_.scales = cuda_check::Upload(std::vector<float>(2 * kInner, 1e-4f));
    d_.gain = cuda_check::UploadAs(std::vector<float>(kHidden, 1.0f), DType::kBF16);
    for (Buffer* b : {&d_.x, &d_.residual, &d_.attention}) {
      *b = cuda_check::UploadAs(cuda_check::Normal(n * kHidden, 7), DType::kBF16);
    }
    d_.normed = Buffer(n * kHidden * 2);
    d_.qkv = cuda_check::UploadAs(cuda_check::Normal(n * kQkv, 8), DType::kBF16);
    d_.gate_up = Buffer(n * 2 * kInner * 2);
    d_.act = cuda_check::UploadAs(cuda_check::Normal(n * kInner, 8), DType::kBF16);
    d_.q = Buffer(n * kInner);
    d_.q.Zero();
    d_.q_scale = cuda_check::Upload(std::vector<float>(n, 1e-3f));
    Plan();
    Must(cudaStreamSynchronize(stream_), "fill");
  }

  void Run() {
    for (int i = 0; i < 4; ++i) fp8_ ? AddFp8(i) : AddBf16(i);
    Breakdown("as it is");
    for (const int i : {3, 0, 1, 2}) Choose(i, 5);
    for (int i = 0; i < 4; ++i) candidates_[i].resize(std::min<size_t>(8, candidates_[i].size()));
    for (const int i : {3, 0, 1, 2}) Choose(i, 15);
    for (int i = 0; i < 4; ++i) {
      std::printf("   %-8s", kShapes[i].name);
      for (const Candidate& c : candidates_[i]) std::printf(" | %s %.1f", c.name.c_str(), c.us);
      std::printf("\n");
    }
    Breakdown("best");
  }

 private:
  void Breakdown(const char* what) {
    const double all = Time(21);
    std::printf("%s rows %d, %s: %.1f us a layer; less without", fp8_ ? "fp8" : "bf16", rows_, what, all);
    for (int p = 0; p < kParts; ++p) {
      if ((p == kRound || p == kAct) && !fp8_) continue;
      skip_ = 1 << p;
      std::printf(" %s %.1f", kPartNames[p], all - Time(11));
    }
    skip_ = 0;
    std::printf("\n");
    std::fflush(stdout);
  }

  void AddBf16(int i) {
    Variants variants;
    AddCublas(variants);
    variants.resize(3);
    AddFew(variants);
    const auto dense = Get<ops::DenseLinearFn>(OpId::kDenseLinear);
    for (const bool gated : {false, true}) {
      variants.push_back({gated ? "dense gated" : "dense", gated, 1, 256,
                          [=](const Product& p, void* workspace, size_t, cudaStream_t) -> Launch {
                            const ops::LinearParams l{p.out, p.x, p.weight, nullptr, p.rows, p.n, p.k, false};
                            return [=](cudaStream_t s) { dense({l, gated, workspace}, {s, 1}); };
                          }});
    }
    for (const Variant& v : variants) {
      if (v.gated != (i == 2) || rows_ < v.least_rows || rows_ > v.most_rows) continue;
      Candidate c{v.name, v.gated, {}};
      for (int layer = 0; layer < kLayers; ++layer) {
        const Shape& s = kShapes[i];
        void* const outs[] = {d_.qkv.get(), d_.x.get(), d_.act.get(), d_.x.get()};
        void* const ins[] = {d_.normed.get(), d_.attention.get(), d_.normed.get(), d_.act.get()};
        Launch l = v.prepare({outs[i], ins[i], d_.weights[i].as<char>() + static_cast<size_t>(s.n) * s.k * layer * 2,
                              rows_, v.gated ? s.n / 2 : s.n, s.k},
                             d_.workspace.get(), d_.workspace.bytes(), stream_);
        if (l) c.layers.push_back(std::move(l));
      }
      if (!c.layers.empty()) Put(i, std::move(c), "dense gated", i == 3 || rows_ <= 64 ? "dense" : "cublas 0");
    }
  }
  void AddFp8(int i) {
    static Fp8Variants variants;
    if (variants.empty()) {
      AddFp8Cublas(variants);
      AddFp8Stream(variants);
      AddFp8Dense(variants);
    }
    for (const Fp8Variant& v : variants) {
      if (rows_ < v.least_rows || rows_ > v.most_rows || (v.gated && i != 2)) continue;
      Candidate c{v.name, v.gated, {}};
      for (int layer = 0; layer < kLayers; ++layer) {
        const Shape& s = kShapes[i];
        ops::DenseFp8LinearParams p;
        void* const outs[] = {d_.qkv.get(), d_.x.get(), v.gated ? d_.act.get() : d_.gate_up.get(), d_.x.get()};
        p.linear = {outs[i],
                    q(),
                    {d_.weights[i].as<uint8_t>() + static_cast<size_t>(s.n) * s.k * layer, d_.scales.as<float>()},
                    nullptr,
                    rows_,
                    v.gated ? s.n / 2 : s.n,
                    s.k};
        p.gated = v.gated;
        p.workspace = d_.workspace.get();
        if (v.run(p, stream_)) c.layers.push_back([&v, p](cudaStream_t s) { v.run(p, s); });
      }
      const char* now[] = {"stream x64 b1 s2", "stream x64 b1 s2", "stream x64 b2 s1", "stream x64 b1 s3"};
      if (!c.layers.empty()) Put(i, std::move(c), now[i], now[i]);
    }
  }
  // What the engine takes at 64 rows goes first.
  void Put(int i, Candidate c, const char* gated, const char* other) {
    const bool first = c.name == (c.gated ? gated : other);
    candidates_[i].insert(first ? candidates_[i].begin() : candidates_[i].end(), std::move(c));
  }

  void Choose(int product, int replays) {
    auto& list = candidates_[product];
    for (Candidate& c : list) {
      std::swap(c, list[0]);
      list[0].us = Time(replays);
      std::swap(c, list[0]);
    }
    std::sort(list.begin(), list.end(), [](const Candidate& a, const Candidate& b) { return a.us < b.us; });
  }

  template <typename Fn>
  Fn Get(OpId op, int32_t head_dim = 0) {
    return *table_.Resolve<Fn>({op, ops::Device::kCuda, DType::kBF16, head_dim, 0, ops::Backend::kFastllm});
  }
  ops::Fp8Rows q() const { return {d_.q.as<uint8_t>(), d_.q_scale.as<float>()}; }

  void Plan() {
    std::vector<int32_t> table(static_cast<size_t>(rows_) * kBlocksPerSeq * kLayers), query_start(rows_ + 1),
        seq_len(rows_, kContext), positions(rows_, kContext - 1);
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(3));
    std::vector<int64_t> slots;
    for (int i = 0; i < rows_ * kLayers; ++i) {
      slots.push_back(int64_t{table[static_cast<size_t>(i) * kBlocksPerSeq + kBlocksPerSeq - 1]} * kBlock + kBlock - 1);
    }
    std::iota(query_start.begin(), query_start.end(), 0);
    const auto bound = Get<ops::AttentionBoundFn>(OpId::kAttentionBound)(
        {rows_, rows_, kHeads, kKvHeads, kDim, DType::kBF16, DType::kBF16});
    std::vector<int32_t> record(bound.record_ints);
    const auto size = Get<ops::AttentionPlanFn>(OpId::kAttentionPlan)(
        {query_start.data(), seq_len.data(), rows_, kHeads, kKvHeads, kDim, DType::kBF16, DType::kBF16, 0, 0.0f, 0, 0,
         record.data(), bound.record_ints, kBlock, kBlocksPerSeq});
    d_.plan = cuda_check::Upload(record);
    d_.table_buffer = cuda_check::Upload(table);
    d_.query_start = cuda_check::Upload(query_start);
    d_.seq_len = cuda_check::Upload(seq_len);
    d_.positions = cuda_check::Upload(positions);
    d_.slots = cuda_check::Upload(slots);
    d_.cos_sin = cuda_check::Upload(std::vector<float>(kContext * kDim, 0.7f));
    d_.attention_workspace = Buffer(bound.workspace_bytes);
    d_.attention_workspace.Zero();
    auto& p = attention_params_;
    p.q = d_.qkv.get();
    p.out = d_.attention.get();
    p.cache = {d_.k.get(), d_.v.get(), rows_ * kBlocksPerSeq * kLayers, kKvHeads, kBlock, kDim, DType::kBF16};
    p.query_start = d_.query_start.as<int32_t>();
    p.seq_len = d_.seq_len.as<int32_t>();
    p.q_stride = kQkv;
    p.num_tokens = p.num_seqs = rows_;
    p.max_blocks = kBlocksPerSeq;
    p.num_q_heads = kHeads;
    p.scale = 1.0f / std::sqrt(static_cast<float>(kDim));
    p.plan = d_.plan.as<int32_t>();
    p.decode_workers = size.decode_workers;
    p.prefill_tiles = size.prefill_tiles;
    p.workspace = d_.attention_workspace.get();
    p.workspace_bytes = bound.workspace_bytes;
  }

  bool Skips(Part p) const { return (skip_ >> p & 1) != 0; }
  void RunProduct(int i, int layer) {
    if (!Skips(kProductParts[i])) candidates_[i][0].layers[layer](stream_);
  }
  void Norm(Part part) {
    if (Skips(part)) return;
    const ops::RmsNormParams p{d_.normed.get(), d_.x.get(), d_.residual.get(), d_.gain.get(), rows_, kHidden, 1e-5f};
    if (fp8_) {
      Get<ops::RmsNormFp8Fn>(OpId::kRmsNormFp8)(p, q(), {stream_, 1});
    } else {
      Get<ops::RmsNormFn>(OpId::kRmsNorm)(p, {stream_, 1});
    }
  }
  void Rope(int layer) {
    if (Skips(kRope)) return;
    ops::RopeKvWriteParams p;
    auto* qkv = d_.qkv.as<char>();
    p.q = qkv;
    p.k = qkv + kHeads * kDim * 2;
    p.v = qkv + (kHeads + kKvHeads) * kDim * 2;
    p.q_stride = p.k_stride = p.v_stride = kQkv;
    p.cos_sin = d_.cos_sin.as<float>();
    p.positions = d_.positions.as<int32_t>();
    p.slot_mapping = d_.slots.as<int64_t>() + static_cast<size_t>(layer) * rows_;
    p.cache = attention_params_.cache;
    p.num_tokens = rows_;
    p.num_q_heads = kHeads;
    p.rotary_dim = kDim;
    Get<ops::RopeKvWriteFn>(OpId::kRopeKvWrite)(p, {stream_, 1});
  }
  void Layer(int layer) {
    Norm(kNorm1);
    RunProduct(0, layer);
    Rope(layer);
    if (!Skips(kAttention)) {
      ops::PagedAttentionParams p = attention_params_;
      p.block_table = d_.table_buffer.as<int32_t>() + static_cast<size_t>(layer) * rows_ * kBlocksPerSeq;
      Get<ops::PagedAttentionFn>(OpId::kPagedAttention, kDim)(p, {stream_, 1});
    }
    const auto quantize = [&](const Buffer& from, int k) {
      Get<ops::QuantizeFp8Fn>(OpId::kQuantizeFp8)({q(), from.get(), rows_, k}, {stream_, 1});
    };
    if (fp8_ && !Skips(kRound)) quantize(d_.attention, kHidden);
    RunProduct(1, layer);
    Norm(kNorm2);
    RunProduct(2, layer);
    if (fp8_ && !Skips(kAct)) {
      if (candidates_[2][0].gated) {
        quantize(d_.act, kInner);
      } else {
        Get<ops::SiluMulFp8Fn>(OpId::kSiluMulFp8)({nullptr, d_.gate_up.get(), rows_, kInner}, q(), {stream_, 1});
      }
    }
    RunProduct(3, layer);
  }
  // Median, us a layer.
  double Time(int replays) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    Must(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin capture");
    for (int l = 0; l < kLayers; ++l) Layer(l);
    Must(cudaStreamEndCapture(stream_, &graph), "end capture");
    Must(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    std::vector<float> us;
    for (int i = 0; i <= replays; ++i) {
      Must(cudaEventRecord(begin_, stream_), "record");
      Must(cudaGraphLaunch(exec, stream_), "launch");
      Must(cudaEventRecord(end_, stream_), "record");
      Must(cudaEventSynchronize(end_), "replay");
      float ms = 0.0f;
      Must(cudaEventElapsedTime(&ms, begin_, end_), "elapsed");
      if (i > 0) us.push_back(ms * 1e3f / kLayers);
    }
    Must(cudaGraphExecDestroy(exec), "destroy");
    Must(cudaGraphDestroy(graph), "destroy");
    std::nth_element(us.begin(), us.begin() + us.size() / 2, us.end());
    return us[us.size() / 2];
  }

  int rows_;
  bool fp8_;
  int skip_ = 0;
  ops::OpTable table_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  Data d_;
  ops::PagedAttentionParams attention_params_;
  std::vector<Candidate> candidates_[4];
};

}  // namespace
}  // namespace fastllm::gemm_bench

int main(int argc, char** argv) {
  using namespace fastllm::gemm_bench;
  try {
    const bool fp8 = argc > 1 && std::strcmp(argv[1], "fp8") == 0;
    for (int i = 2; i < argc; ++i) Chain(std::atoi(argv[i]), fp8).Run();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "layer_chain: %s\n", e.what());
    return 1;
  }
}
