// What gemm_bench and fp8_bench time: products at the shapes of Llama-3.1-8B, replayed in graphs.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "bench/ops/gemm/data.h"
#include "tests/cuda/support.h"

namespace fastllm::gemm_bench {

struct Shape {
  const char* name;
  int n, k;
  bool gated;
};
inline constexpr Shape kShapes[] = {{"qkv", 6144, 4096, false},
                                    {"o", 4096, 4096, false},
                                    {"gate_up", 28672, 4096, false},
                                    {"down", 4096, 14336, false},
                                    {"gate_up+silu", 14336, 4096, true}};

// One shape and number of rows: operands of `bytes_each` several times over, so that they come from memory; outputs in
// bfloat16. The operands are not filled.
struct Cell {
  Cell(const Shape& s, int rows_of, int bytes_each, int most_sets)
      : shape(s),
        rows(rows_of),
        weight_rows(s.n * (s.gated ? 2 : 1)),
        bytes(bytes_each),
        weights(size_t{1} * weight_rows * s.k),
        inputs(size_t{1} * rows_of * s.k),
        outputs(size_t{1} * rows_of * s.n),
        sets(std::clamp(static_cast<int>(300e6 / static_cast<double>(weights * bytes)) + 1, 2, most_sets)),
        weight(weights * bytes * sets),
        x(inputs * bytes * sets),
        out(outputs * 2 * sets),
        wide(s.gated ? outputs * 4 : 16),
        expected(outputs * 2) {}

  char* out_of(int set) const { return out.as<char>() + outputs * 2 * set; }
  char* x_of(int set) const { return x.as<char>() + inputs * bytes * set; }
  char* weight_of(int set) const { return weight.as<char>() + weights * bytes * set; }
  // What memory (4.3 TB/s) or the tensor cores allow at best.
  double floor_us(double flops_per_second) const {
    const double moved = static_cast<double>((weights + inputs) * bytes + outputs * 2);
    return std::max(moved / 4.3e12, 2.0 * static_cast<double>(weights) * rows / flops_per_second) * 1e6;
  }

  Shape shape;
  int rows, weight_rows, bytes;
  size_t weights, inputs, outputs;
  int sets;
  cuda_check::Buffer weight, x, out, wide, expected;
};

// A variant over all sets of a cell, in a graph.
struct Timed {
  std::string name;
  cudaGraphExec_t graph = nullptr;
  int reps = 0;
  std::vector<float> us;

  double Median() {
    if (us.empty()) return 1e30;
    std::nth_element(us.begin(), us.begin() + us.size() / 2, us.end());
    return us[us.size() / 2];
  }
};

// One stream on which variants are compared and timed.
class Timer {
 public:
  Timer() : sums_(3 * sizeof(double)) {
    cuda_check::Must(cudaStreamCreate(&stream_), "stream");  // in order with copies and fills
    cuda_check::Must(cudaEventCreate(&begin_), "event");
    cuda_check::Must(cudaEventCreate(&end_), "event");
  }
  cudaStream_t stream() const { return stream_; }
  void Wait(const std::string& what) const { cuda_check::Must(cudaStreamSynchronize(stream_), what.c_str()); }

  // Relative difference of set 0's output from another, and how many elements have other bits.
  std::pair<double, double> Differs(const Cell& c, const void* other) {
    sums_.Zero();
    Compare(c.out.get(), other, c.outputs, sums_.as<double>(), stream_);
    Wait("compare");
    const auto s = cuda_check::Download<double>(sums_.get(), 3);
    return {std::sqrt(s[0] / s[1]), s[2]};
  }
  // A graph of launch(set), for about 1.5 ms and all sets equally often.
  template <typename Launch>
  void Capture(Timed& t, double us, int sets, const Launch& launch) const {
    t.reps = us > 500 ? sets : std::max(1, static_cast<int>(1500 / (us * sets))) * sets;
    cudaGraph_t graph;
    cuda_check::Must(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin capture");
    for (int i = 0; i < t.reps; ++i) launch(i % sets);
    cuda_check::Must(cudaStreamEndCapture(stream_, &graph), "end capture");
    cuda_check::Must(cudaGraphInstantiate(&t.graph, graph, 0), "instantiate");
    cuda_check::Must(cudaGraphDestroy(graph), "destroy graph");
  }
  void Replay(Timed& t) const {
    cuda_check::Must(cudaEventRecord(begin_, stream_), "record");
    cuda_check::Must(cudaGraphLaunch(t.graph, stream_), "launch graph");
    cuda_check::Must(cudaEventRecord(end_, stream_), "record");
    cuda_check::Must(cudaEventSynchronize(end_), t.name.c_str());
    float ms = 0.0f;
    cuda_check::Must(cudaEventElapsedTime(&ms, begin_, end_), "elapsed");
    t.us.push_back(ms * 1e3f / static_cast<float>(t.reps));
  }
  // The first time of a graph is not one of the others.
  void ReplayFirst(Timed& t) const {
    for (int i = 0; i < 4; ++i) Replay(t);
    t.us.erase(t.us.begin());
  }

 private:
  cuda_check::Buffer sums_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace fastllm::gemm_bench
