#include "bench/ops/cuda_bench.h"
namespace fastllm::cuda_bench { void BenchSample(Bench&) {} }
