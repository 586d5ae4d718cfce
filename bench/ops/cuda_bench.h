// Times of single CUDA ops: graph replays over rotated buffers, so that inputs come from memory and not from the L2
// where a model would not find them there either.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/cuda/support.h"

namespace fastllm::cuda_bench {

using cuda_check::Buffer;
using ops::DType;
using ops::OpId;

struct Measure {
  std::string op;
  std::string shape;
  double bytes = 0.0;         // that must move at least
  double flops = 0.0;         // that must be done at least
  double reference_us = 0.0;  // the peer's figure, 0: none
};

class Bench {
 public:
  explicit Bench(std::string filter) : filter_(std::move(filter)) { ops::RegisterCudaOps(table_); }

  template <typename Fn>
  Fn Get(OpId op, DType t, int32_t head_dim = 0, ops::Backend backend = ops::Backend::kAny) const {
    auto r = table_.Resolve<Fn>({op, ops::Device::kCuda, t, head_dim, 0, backend});
    if (!r.ok()) cuda_check::Must(1, r.status().ToString().c_str());
    return r.value();
  }
  bool Has(OpId op, DType t, int32_t head_dim, ops::Backend backend) const {
    return table_.Find({op, ops::Device::kCuda, t, head_dim, 0, backend}).ok();
  }
  // Whether figures of the op, "cuda.<op> <shape>", may match the filter.
  bool Wanted(const std::string& op) const {
    return ("cuda." + op).find(filter_) != std::string::npos || filter_.find(op) != std::string::npos;
  }

  // launch(set, stream) enqueues the op over buffer set `set` of `sets`. Prints one line and one RESULT.
  void Time(const Measure& m, int sets, const std::function<void(int, void*)>& launch);

 private:
  ops::OpTable table_;
  std::string filter_;
};

// `bytes` of random normal deviates of type t, made from a repeated block of 1 Mi elements.
Buffer RandomBuffer(size_t elements, DType t, uint64_t seed);

// Sets of buffers of `bytes` each that together exceed the L2 by far.
int SetsFor(double bytes);

void BenchRows(Bench& b);
void BenchAttention(Bench& b);
void BenchSample(Bench& b);
void BenchLinear(Bench& b);
void BenchLayer(Bench& b);
void BenchFp8(Bench& b);

}  // namespace fastllm::cuda_bench
