// cuda_bench [name filter]: every CUDA op at the shapes of Llama-3.1-8B, beside its floor (4.3 TB/s, 790 TFLOP/s) and,
// where there is one, the peer's figure.
#include "bench/ops/cuda_bench.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <exception>

namespace fastllm::cuda_bench {
namespace {

constexpr double kBandwidth = 4.3e12;
constexpr double kTensor = 790e12;

using cuda_check::Must;

cudaGraphExec_t Capture(cudaStream_t stream, int reps, int sets, const std::function<void(int, void*)>& launch) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  Must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
  for (int i = 0; i < reps; ++i) launch(i % sets, stream);
  Must(cudaStreamEndCapture(stream, &graph), "end capture");
  Must(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  Must(cudaGraphDestroy(graph), "destroy graph");
  return exec;
}

float Replay(cudaGraphExec_t exec, cudaStream_t stream, cudaEvent_t begin, cudaEvent_t end) {
  Must(cudaEventRecord(begin, stream), "record");
  Must(cudaGraphLaunch(exec, stream), "launch graph");
  Must(cudaEventRecord(end, stream), "record");
  Must(cudaEventSynchronize(end), "replay");
  float ms = 0.0f;
  Must(cudaEventElapsedTime(&ms, begin, end), "elapsed");
  return ms;
}

double MedianMicroseconds(int sets, double floor_us, const std::function<void(int, void*)>& launch) {
  const int reps = std::clamp(static_cast<int>(4000.0 / std::max(floor_us, 2.0)), 5, 400) / sets * sets + sets;
  cudaStream_t stream;
  cudaEvent_t begin, end;
  Must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  Must(cudaEventCreate(&begin), "event");
  Must(cudaEventCreate(&end), "event");
  launch(0, stream);
  Must(cudaStreamSynchronize(stream), "first launch");
  const cudaGraphExec_t exec = Capture(stream, reps, sets, launch);
  for (int i = 0; i < 3; ++i) Replay(exec, stream, begin, end);
  std::vector<float> ms;
  for (int i = 0; i < 9; ++i) ms.push_back(Replay(exec, stream, begin, end));
  std::nth_element(ms.begin(), ms.begin() + 4, ms.end());
  Must(cudaGraphExecDestroy(exec), "destroy");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  return ms[4] * 1e3 / reps;
}

}  // namespace

void Bench::Time(const Measure& m, int sets, const std::function<void(int, void*)>& launch) {
  const double floor_us = std::max(m.bytes / kBandwidth, m.flops / kTensor) * 1e6;
  const double us = MedianMicroseconds(sets, floor_us, launch);
  std::printf("%-20s %-30s %9.2f us  %6.2f TB/s  %6.1f TFLOP/s  %5.1f%% of the floor", m.op.c_str(), m.shape.c_str(),
              us, m.bytes / us * 1e-6, m.flops / us * 1e-6, 100.0 * floor_us / us);
  if (m.reference_us > 0.0) std::printf("  peer %8.2f us, ratio %.2f", m.reference_us, m.reference_us / us);
  std::printf("\n");
  std::printf(
      "RESULT {\"name\": \"cuda.%s %s\", \"value\": %.2f, \"unit\": \"us\", \"reference\": %.2f, \"ratio\": %.3f}\n",
      m.op.c_str(), m.shape.c_str(), us, m.reference_us > 0.0 ? m.reference_us : floor_us,
      (m.reference_us > 0.0 ? m.reference_us : floor_us) / us);
  std::fflush(stdout);
}

Buffer RandomBuffer(size_t elements, DType t, uint64_t seed) {
  const size_t block = std::min<size_t>(elements, size_t{1} << 20);
  const auto host = cuda_check::Normal(block, seed);
  const Buffer source = cuda_check::UploadAs(host, t);
  const size_t bytes = elements * ops::DTypeSize(t), step = source.bytes();
  Buffer out(bytes);
  for (size_t at = 0; at < bytes; at += step) {
    Must(cudaMemcpy(out.as<char>() + at, source.get(), std::min(step, bytes - at), cudaMemcpyDeviceToDevice), "fill");
  }
  return out;
}

int SetsFor(double bytes) { return std::clamp(static_cast<int>(400e6 / bytes) + 1, 2, 64); }

}  // namespace fastllm::cuda_bench

int main(int argc, char** argv) {
  namespace cb = fastllm::cuda_bench;
  try {
    cb::Bench bench(argc > 1 ? argv[1] : "");
    cb::BenchRows(bench);
    cb::BenchAttention(bench);
    cb::BenchSample(bench);
    cb::BenchLinear(bench);
    cb::BenchLayer(bench);
    cb::BenchFp8(bench);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "cuda_bench: %s\n", e.what());
    return 1;
  }
  return 0;
}
