// fp8_bench [rows...]: products in 8-bit floats at the shapes of Llama-3.1-8B: cuBLASLt's choices and ours, checked
// against each other (bits against a second run) and timed in graphs over weights that come from memory. Prints the
// best of each kind, and all times to the file that FP8_BENCH_LOG names.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>

#include "bench/ops/gemm/data.h"
#include "bench/ops/gemm/fp8_product.h"
#include "ops/contract/silu_mul.h"
#include "tests/cuda/support.h"

namespace fastllm::gemm_bench {
namespace {

using cuda_check::Buffer;
using cuda_check::Must;

constexpr double kBandwidth = 4.3e12, kTensor = 1400e12;

struct Shape {
  const char* name;
  int n, k;
  bool gated;
};
constexpr Shape kShapes[] = {{"qkv", 6144, 4096, false},
                             {"o", 4096, 4096, false},
                             {"gate_up", 28672, 4096, false},
                             {"down", 4096, 14336, false},
                             {"gate_up+silu", 14336, 4096, true}};

struct Cell {
  Cell(const Shape& s, int rows_of, cudaStream_t stream)
      : shape(s),
        rows(rows_of),
        weight_rows(s.n * (s.gated ? 2 : 1)),
        weights(size_t{1} * weight_rows * s.k),
        inputs(size_t{1} * rows_of * s.k),
        outputs(size_t{1} * rows_of * s.n),
        sets(std::clamp(static_cast<int>(300e6 / static_cast<double>(weights)) + 1, 2, 20)),
        weight(weights * sets),
        x(inputs * sets),
        out(outputs * 2 * sets),
        wide(s.gated ? outputs * 4 : 16),
        expected(outputs * 2) {
    FillFp8(weight.get(), weights * sets, 1, 90.0f, stream);
    FillFp8(x.get(), inputs * sets, 2, 90.0f, stream);
    auto scales = cuda_check::Normal(weight_rows, 3), rows_scales = cuda_check::Normal(rows, 4);
    for (float& v : scales) v = (1.0f + 0.1f * std::tanh(v)) * 1e-3f;
    for (float& v : rows_scales) v = (1.0f + 0.1f * std::tanh(v)) * 1e-3f;
    weight_scale = cuda_check::Upload(scales);
    x_scale = cuda_check::Upload(rows_scales);
  }
  ops::DenseFp8LinearParams Of(int set, bool gated, void* workspace) const {
    ops::DenseFp8LinearParams p;
    p.linear = {out.as<char>() + outputs * 2 * set,
                {x.as<uint8_t>() + inputs * set, x_scale.as<float>()},
                {weight.as<uint8_t>() + weights * set, weight_scale.as<float>()},
                nullptr,
                rows,
                shape.n,
                shape.k};
    p.gated = gated;
    p.workspace = workspace;
    if (shape.gated && !gated) p.linear.n = weight_rows, p.linear.out = wide.get();
    return p;
  }
  double floor_us() const {
    const double bytes = static_cast<double>(weights + inputs + 2 * outputs);
    return std::max(bytes / kBandwidth, 2.0 * static_cast<double>(weights) * rows / kTensor) * 1e6;
  }

  Shape shape;
  int rows, weight_rows;
  size_t weights, inputs, outputs;
  int sets;
  Buffer weight, x, out, wide, expected, weight_scale, x_scale;
};

class Program {
 public:
  Program() : workspace_(ops::kDenseWorkspaceBytes), sums_(3 * sizeof(double)) {
    Must(cudaStreamCreate(&stream_), "stream");
    Must(cudaEventCreate(&begin_), "event");
    Must(cudaEventCreate(&end_), "event");
    ops::RegisterCudaOps(table_);
    silu_ = *table_.Resolve<ops::SiluMulFn>({ops::OpId::kSiluMul, ops::Device::kCuda, ops::DType::kBF16});
    AddFp8Cublas(variants_);
    AddFp8Stream(variants_);
    AddFp8Dense(variants_);
    workspace_.Zero();
    if (const char* path = std::getenv("FP8_BENCH_LOG")) log_ = std::fopen(path, "w");
  }
  ~Program() {
    if (log_ != nullptr) std::fclose(log_);
  }
  int failures() const { return failures_; }

  void Rows(int rows) {
    for (const Shape& s : kShapes) {
      Cell c(s, rows, stream_);
      std::map<std::string, std::vector<Timed>> kinds;
      bool first = true;
      for (const Fp8Variant& v : variants_) {
        if (v.gated && !s.gated) continue;
        if (s.gated && !v.gated && v.name != "cublas 0" && v.name.rfind("stream", 0) != 0) continue;
        if (rows < v.least_rows || rows > v.most_rows || !Run(v, c, 0) || !Check(v, c, first)) continue;
        first = false;
        Timed t = Capture(v, c);
        for (int i = 0; i < 4; ++i) Replay(t, i > 0);
        if (log_ != nullptr) std::fprintf(log_, "%s %d\t%s\t%.2f\n", s.name, rows, v.name.c_str(), t.Median());
        kinds[v.name.substr(0, v.name.find(' '))].push_back(std::move(t));
      }
      Best(c, kinds);
    }
  }

 private:
  bool Run(const Fp8Variant& v, Cell& c, int set) {
    if (!v.run(c.Of(set, v.gated, workspace_.get()), stream_)) return false;
    if (!c.shape.gated || v.gated) return true;
    ops::SiluMulParams p;
    p.out = c.out.as<char>() + c.outputs * 2 * set;
    p.gate_up = c.wide.get();
    p.num_tokens = c.rows;
    p.n = c.shape.n;
    silu_(p, {stream_, 1});
    return true;
  }

  bool Check(const Fp8Variant& v, Cell& c, bool first) {
    const auto differs = [&](const void* from) {
      sums_.Zero();
      Compare(c.out.get(), from, c.outputs, sums_.as<double>(), stream_);
      Must(cudaStreamSynchronize(stream_), "compare");
      return cuda_check::Download<double>(sums_.get(), 3);
    };
    Must(cudaStreamSynchronize(stream_), v.name.c_str());
    c.out.Poison();
    Run(v, c, 0);
    Must(cudaStreamSynchronize(stream_), v.name.c_str());
    if (first) Must(cudaMemcpy(c.expected.get(), c.out.get(), c.outputs * 2, cudaMemcpyDeviceToDevice), "copy");
    const auto s = differs(c.expected.get());
    const double error = std::sqrt(s[0] / s[1]);
    bool good = error < 8e-3;
    Buffer once(c.outputs * 2);
    Must(cudaMemcpy(once.get(), c.out.get(), c.outputs * 2, cudaMemcpyDeviceToDevice), "copy");
    Run(v, c, 0);
    good = good && differs(once.get())[2] == 0;
    if (log_ != nullptr) std::fprintf(log_, "# %s %d %s: %.2e\n", c.shape.name, c.rows, v.name.c_str(), error);
    if (good) return true;
    ++failures_;
    std::printf("FAILED %s %d %s: %.2e from the first, or other bits\n", c.shape.name, c.rows, v.name.c_str(), error);
    return false;
  }

  // A variant over all sets of a cell.
  struct Timed {
    std::string name;
    cudaGraphExec_t graph = nullptr;
    int reps = 0;
    std::vector<float> us;
    float Median() {
      std::nth_element(us.begin(), us.begin() + us.size() / 2, us.end());
      return us[us.size() / 2];
    }
  };
  Timed Capture(const Fp8Variant& v, Cell& c) {
    Timed t;
    t.name = v.name;
    const double us = c.floor_us();
    t.reps = us > 500 ? c.sets : std::max(1, static_cast<int>(1500 / (us * c.sets))) * c.sets;
    cudaGraph_t graph;
    Must(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin capture");
    for (int i = 0; i < t.reps; ++i) Run(v, c, i % c.sets);
    Must(cudaStreamEndCapture(stream_, &graph), "end capture");
    Must(cudaGraphInstantiate(&t.graph, graph, 0), "instantiate");
    Must(cudaGraphDestroy(graph), "destroy");
    return t;
  }
  void Replay(Timed& t, bool keep) {
    Must(cudaEventRecord(begin_, stream_), "record");
    Must(cudaGraphLaunch(t.graph, stream_), "launch graph");
    Must(cudaEventRecord(end_, stream_), "record");
    Must(cudaEventSynchronize(end_), t.name.c_str());
    float ms = 0.0f;
    Must(cudaEventElapsedTime(&ms, begin_, end_), "elapsed");
    if (keep) t.us.push_back(ms * 1e3f / static_cast<float>(t.reps));
  }
  // The best of each kind again in turns, so at the same temperature and clock.
  void Best(Cell& c, std::map<std::string, std::vector<Timed>>& kinds) {
    std::vector<Timed*> turns;
    for (auto& [kind, list] : kinds) {
      std::sort(list.begin(), list.end(), [](Timed& a, Timed& b) { return a.Median() < b.Median(); });
      for (size_t i = 0; i < std::min<size_t>(3, list.size()); ++i) turns.push_back(&list[i]);
    }
    for (Timed* t : turns) t->us.clear();
    for (int round = 0; round < 12; ++round) {
      for (Timed* t : turns) Replay(*t, round > 0);
    }
    std::printf("%-13s %5d floor %8.1f", c.shape.name, c.rows, c.floor_us());
    for (Timed* t : turns) std::printf(" | %s %.1f", t->name.c_str(), t->Median());
    std::printf("\n");
    std::fflush(stdout);
    for (auto& [kind, list] : kinds) {
      for (Timed& t : list) cudaGraphExecDestroy(t.graph);
    }
  }

  Buffer workspace_, sums_;
  ops::OpTable table_;
  Fp8Variants variants_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  std::FILE* log_ = nullptr;
  int failures_ = 0;
  ops::SiluMulFn silu_ = nullptr;
};

}  // namespace
}  // namespace fastllm::gemm_bench

int main(int argc, char** argv) {
  try {
    fastllm::gemm_bench::Program program;
    for (int i = 1; i < argc; ++i) program.Rows(std::atoi(argv[i]));
    if (argc < 2) {
      for (const int rows : {1, 8, 32, 64, 128, 192, 256, 384, 512, 1024, 8192}) program.Rows(rows);
    }
    std::printf("%d failures\n", program.failures());
    return program.failures() > 0 ? 1 : 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fp8_bench: %s\n", e.what());
    return 1;
  }
}
