// fp8_chain [rows...]: what a decoder layer of Llama-3.1-8B in 8-bit floats launches but attention (norm, qkv,
// rounding, o, norm, gate_up, SiLU-mul, down), several layers in a row with weights from memory, in one graph. Each
// product's candidates are timed within the chain, the others being the best so far: kernels that are launched ahead of
// their predecessor's end are worth what they bring there. Prints the best, and all times to the file that
// FP8_BENCH_LOG names. The values are not checked here: fp8_bench does.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "bench/ops/gemm/fp8_product.h"
#include "ops/contract/rms_norm.h"
#include "ops/contract/silu_mul.h"
#include "tests/cuda/support.h"

namespace fastllm::gemm_bench {
namespace {

using cuda_check::Buffer;
using cuda_check::Must;

constexpr int kLayers = 6, kHidden = 4096, kInner = 14336;
struct Shape {
  const char* name;
  int n, k;
};
constexpr Shape kShapes[] = {
    {"qkv", 6144, kHidden}, {"o", kHidden, kHidden}, {"gate_up", 2 * kInner, kHidden}, {"down", kHidden, kInner}};

struct Ops {
  Ops() {
    ops::RegisterCudaOps(table);
    quantize = Get<ops::QuantizeFp8Fn>(ops::OpId::kQuantizeFp8);
    norm = Get<ops::RmsNormFp8Fn>(ops::OpId::kRmsNormFp8);
    silu = Get<ops::SiluMulFp8Fn>(ops::OpId::kSiluMulFp8);
  }
  template <typename Fn>
  Fn Get(ops::OpId op) {
    return *table.Resolve<Fn>({op, ops::Device::kCuda, ops::DType::kBF16});
  }
  ops::OpTable table;
  ops::QuantizeFp8Fn quantize;
  ops::RmsNormFp8Fn norm;
  ops::SiluMulFp8Fn silu;
};

// What the launches read and write.
struct Data {
  Buffer workspace{ops::kDenseWorkspaceBytes};
  Buffer weights[4], scales, gain, x, residual, attention, qkv, gate_up, act, q, q_scale;
};

class Chain {
 public:
  Chain(const Fp8Variants& variants, int rows, std::FILE* log) : variants_(variants), rows_(rows), log_(log) {
    Must(cudaStreamCreate(&stream_), "stream");
    Must(cudaEventCreate(&begin_), "event");
    Must(cudaEventCreate(&end_), "event");
    data_.workspace.Zero();
    const size_t n = rows;
    for (int i = 0; i < 4; ++i) {
      const size_t one = static_cast<size_t>(kShapes[i].n) * kShapes[i].k;
      data_.weights[i] = Buffer(one * kLayers);
      FillFp8(data_.weights[i].get(), one * kLayers, 1 + i, 90.0f, stream_);
    }
    data_.scales = cuda_check::Upload(std::vector<float>(2 * kInner, 1e-4f));
    data_.gain = cuda_check::UploadAs(std::vector<float>(kHidden, 1.0f), ops::DType::kBF16);
    for (Buffer* b : {&data_.x, &data_.residual, &data_.attention}) {
      *b = cuda_check::UploadAs(cuda_check::Normal(n * kHidden, 7), ops::DType::kBF16);
    }
    data_.qkv = Buffer(n * 6144 * 2);
    data_.gate_up = Buffer(n * 2 * kInner * 2);
    data_.act = Buffer(n * kInner * 2);
    data_.q = Buffer(n * kInner);
    data_.q_scale = Buffer(n * 4);
    Must(cudaStreamSynchronize(stream_), "fill");
  }

  void Run() {
    for (int i = 0; i < 4; ++i) {
      for (size_t v = 0; v < variants_.size(); ++v) {
        if (Fits(variants_[v], i)) candidates_[i].push_back({v, 0.0});
      }
      best_[i] = candidates_[i][0].first;
    }
    for (const int i : {2, 3, 0, 1}) Choose(i, 3);
    for (int i = 0; i < 4; ++i) candidates_[i].resize(std::min<size_t>(4, candidates_[i].size()));
    for (const int i : {2, 3, 0, 1}) Choose(i, 11);
    std::printf("rows %d: %.1f us a layer", rows_, Time(11));
    for (int i = 0; i < 4; ++i) {
      std::printf("\n   %-8s", kShapes[i].name);
      for (const auto& [v, us] : candidates_[i]) std::printf(" | %s %.1f", variants_[v].name.c_str(), us);
    }
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  bool Fits(const Fp8Variant& v, int product) {
    if (rows_ < v.least_rows || rows_ > v.most_rows || (v.gated && product != 2)) return false;
    return Product(v, product, 0);
  }
  void Choose(int product, int replays) {
    auto& list = candidates_[product];
    for (auto& [v, us] : list) {
      best_[product] = v;
      us = Time(replays);
      if (log_ != nullptr) {
        std::fprintf(log_, "%d %s %s %.2f\n", rows_, kShapes[product].name, variants_[v].name.c_str(), us);
      }
    }
    std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    best_[product] = list[0].first;
  }

  ops::Fp8Rows q() const { return {data_.q.as<uint8_t>(), data_.q_scale.as<float>()}; }
  bool Product(const Fp8Variant& v, int i, int layer) {
    const Shape& s = kShapes[i];
    ops::DenseFp8LinearParams p;
    void* const outs[] = {data_.qkv.get(), data_.x.get(), v.gated ? data_.act.get() : data_.gate_up.get(),
                          data_.x.get()};
    p.linear = {outs[i],
                q(),
                {data_.weights[i].as<uint8_t>() + static_cast<size_t>(s.n) * s.k * layer, data_.scales.as<float>()},
                nullptr,
                rows_,
                v.gated ? s.n / 2 : s.n,
                s.k};
    p.gated = v.gated;
    p.workspace = data_.workspace.get();
    return v.run(p, stream_);
  }
  void Norm() {
    ops_.norm({nullptr, data_.x.get(), data_.residual.get(), data_.gain.get(), rows_, kHidden, 1e-5f}, q(),
              {stream_, 1});
  }
  void Layer(int layer) {
    Norm();
    Product(variants_[best_[0]], 0, layer);
    ops_.quantize({q(), data_.attention.get(), rows_, kHidden}, {stream_, 1});
    Product(variants_[best_[1]], 1, layer);
    Norm();
    Product(variants_[best_[2]], 2, layer);
    if (variants_[best_[2]].gated) {
      ops_.quantize({q(), data_.act.get(), rows_, kInner}, {stream_, 1});
    } else {
      ops_.silu({nullptr, data_.gate_up.get(), rows_, kInner}, q(), {stream_, 1});
    }
    Product(variants_[best_[3]], 3, layer);
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

  const Fp8Variants& variants_;
  int rows_;
  std::FILE* log_;
  Ops ops_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  Data data_;
  std::vector<std::pair<size_t, double>> candidates_[4];
  size_t best_[4] = {};
};

}  // namespace
}  // namespace fastllm::gemm_bench

int main(int argc, char** argv) {
  using namespace fastllm::gemm_bench;
  try {
    Fp8Variants variants;
    AddFp8Cublas(variants);
    AddFp8Stream(variants);
    AddFp8Dense(variants);
    const char* path = std::getenv("FP8_BENCH_LOG");
    std::FILE* log = path == nullptr ? nullptr : std::fopen(path, "w");
    for (int i = 1; i < argc; ++i) Chain(variants, std::atoi(argv[i]), log).Run();
    if (log != nullptr) std::fclose(log);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fp8_chain: %s\n", e.what());
    return 1;
  }
}
