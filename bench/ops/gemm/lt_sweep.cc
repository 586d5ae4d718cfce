// lt_sweep [rest]: which of cuBLASLt's algorithms to take for the products of Llama-3.1-8B in bfloat16 at each of the
// sizes that stand for steps of many rows (runtime/device/plan_rows.h): the first eight of the size itself and the
// first four of sizes above it. o and down add to what out holds. Weights come from memory. rest: the share of each
// timing that the device then rests, so that its clock is that of short work (0). A line for each size: us of the first
// choice, and the best others with the rows that were asked about and their place there.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bench/ops/gemm/cublas.h"
#include "bench/ops/gemm/data.h"
#include "runtime/device/plan_rows.h"

namespace fastllm::gemm_bench {
namespace {

constexpr int kFirst = 256, kLast = 2048;
constexpr size_t kWorkspace = 32 << 20, kWeights = 300 << 20;

struct Shape {
  const char* name;
  int n, k;
  bool adds;
  int last;  // rows; of gate_up above 896 a kernel of ours has them
};
constexpr Shape kShapes[] = {{"qkv", 6144, 4096, false, kLast},
                             {"o", 4096, 4096, true, kLast},
                             {"gate_up", 28672, 4096, false, 896},
                             {"down", 4096, 14336, true, kLast}};

void Must(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes) { Must(cudaMalloc(&data_, bytes), "cudaMalloc"); }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* get() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Of a weight, so that it comes from memory.
int CopiesOf(const Shape& s) {
  const size_t weight = size_t{2} * s.n * s.k;
  return static_cast<int>(std::max<size_t>(2, (kWeights + weight - 1) / weight));
}

struct Candidate {
  int ask = 0, choice = 0;
  float us = 0.0f;
};

class Sweep {
 public:
  Sweep(const Shape& s, double rest)
      : s_(s),
        rest_(rest),
        copies_(CopiesOf(s)),
        weights_(size_t{2} * s.n * s.k * copies_),
        x_(size_t{2} * kLast * s.k),
        out_(size_t{2} * kLast * s.n),
        workspace_(kWorkspace) {
    Must(cudaStreamCreate(&stream_), "stream");
    Must(cudaEventCreate(&begin_), "event");
    Must(cudaEventCreate(&end_), "event");
    FillRandom(weights_.get(), weights_.bytes() / 2, 1, 0.02f, stream_);
    FillRandom(x_.get(), x_.bytes() / 2, 2, 1.0f, stream_);
    FillRandom(out_.get(), out_.bytes() / 2, 3, 1.0f, stream_);
  }
  ~Sweep() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }

  // us; 0 where there is none, or it does not take so many rows.
  float Time(int rows, int ask, int choice) {
    std::vector<Launch> launches;
    for (int i = 0; i < copies_; ++i) {
      const Product p{out_.get(), x_.get(), static_cast<char*>(weights_.get()) + size_t{2} * s_.n * s_.k * i,
                      rows,       s_.n,     s_.k};
      launches.push_back(PrepareCublas(p, workspace_.get(), kWorkspace, ask, choice, s_.adds));
      if (!launches.back()) return 0.0f;
    }
    float best = 1e9f;
    try {
      for (int round = 0; round < 3; ++round) {
        const int reps = std::max(copies_, 6);
        Must(cudaEventRecord(begin_, stream_), "record");
        for (int i = 0; i < reps; ++i) launches[i % copies_](stream_);
        Must(cudaEventRecord(end_, stream_), "record");
        Must(cudaEventSynchronize(end_), "synchronize");
        float ms = 0.0f;
        Must(cudaEventElapsedTime(&ms, begin_, end_), "elapsed");
        if (round > 0) best = std::min(best, ms * 1e3f / reps);
        if (rest_ > 0.0) std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int>(ms * 1e3 * rest_)));
      }
    } catch (const std::exception&) {
      return 0.0f;
    }
    return best;
  }

  void Print(int rows) {
    std::vector<Candidate> all;
    const auto add = [&](int ask, int most) {
      for (int choice = 0; choice < most; ++choice) {
        const float us = Time(rows, ask, choice);
        if (us > 0.0f) all.push_back({ask, choice, us});
      }
    };
    add(rows, 8);
    const float first = all.empty() ? 0.0f : all[0].us;
    for (const int ask : runtime::PlanSizes(rows, rows + rows / 4)) add(ask, 4);
    std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.us < b.us; });
    std::printf("%-8s %5d  %7.1f (%4.0f TFLOP/s) |", s_.name, rows, first, 2e-6 * rows * s_.n * s_.k / first);
    for (size_t i = 0; i < std::min<size_t>(4, all.size()); ++i) {
      std::printf(" %d#%d %.1f x%.3f |", all[i].ask, all[i].choice, all[i].us, first / all[i].us);
    }
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  Shape s_;
  double rest_;
  int copies_;
  Buffer weights_, x_, out_, workspace_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace
}  // namespace fastllm::gemm_bench

int main(int argc, char** argv) {
  using namespace fastllm::gemm_bench;
  try {
    for (const Shape& s : kShapes) {
      Sweep sweep(s, argc > 1 ? std::atof(argv[1]) : 0.0);
      for (const int rows : fastllm::runtime::PlanSizes(kFirst, s.last)) sweep.Print(rows);
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "lt_sweep: %s\n", e.what());
    return 1;
  }
}
