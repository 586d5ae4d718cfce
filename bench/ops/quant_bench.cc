// Times the quantised linear at the shapes of SmolLM2-135M.
//   quant_bench [name filter] [threads]
// One line per case: RESULT {"name", "value" and "reference" in microseconds (quantised, float32 linear), "ratio"},
// with the rates reached: GB/s of weights read and G operations (two for each product) a second. quant_linear is with
// batch_invariant; quant_linear_wide, of kWideRows rows and more, is without, and its reference is the one with.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "ops/contract/linear.h"
#include "ops/contract/quant_linear.h"
#include "ops/cpu/isa.h"
#include "timer.h"
#include "weight_pool.h"

namespace fastllm::ops {
namespace {

constexpr int64_t kPoolBytes = int64_t{96} << 20;  // copies of a weight, so that each call reads it from memory

class Bench {
 public:
  // The float16 values of the pool are positive and below 2: any such bytes are valid blocks.
  Bench(std::string filter, int threads)
      : filter_(std::move(filter)), context_{nullptr, threads}, pool_(RandomPool(kPoolBytes, 0x3BFF, 0)) {
    OpTable table;
    RegisterCpuOps(table);
    quant_ = table.Resolve<QuantLinearFn>({OpId::kQuantLinear, Device::kCpu, DType::kF32}).value();
    float_ = table.Resolve<LinearFn>({OpId::kLinear, Device::kCpu, DType::kF32}).value();
  }

  void Run(QuantFormat format, const Shape& s, int rows) {
    const std::string name = std::string(TraitsOf(format).name) + "." + s.name + "." + std::to_string(rows) + "row.t" +
                             std::to_string(context_.num_threads);
    if (("ops.quant_linear." + name).find(filter_) == std::string::npos) return;
    std::vector<float> x(static_cast<size_t>(rows) * s.k), out(static_cast<size_t>(rows) * s.n);
    std::mt19937_64 rng(1);
    std::normal_distribution<float> normal;
    for (float& v : x) v = normal(rng);
    const int64_t bytes = PackedBytes(format, s.n, s.k);
    const int64_t copies = kPoolBytes / bytes;
    int64_t turn = 0;
    const auto time = [&](bool batch_invariant) {
      return Time([&] {
        const QuantWeight w = {pool_ + turn++ % copies * bytes, s.n, s.k, format};
        quant_({out.data(), x.data(), &w, nullptr, 1, rows, s.n, s.k, 16, batch_invariant}, context_);
      });
    };
    const auto print = [&](const std::string& op, double us, double reference) {
      std::printf(
          "RESULT {\"name\": \"ops.%s.%s\", \"value\": %.2f, \"unit\": \"us\", \"reference\": %.2f, \"ratio\": %.2f, "
          "\"gb_per_s\": %.1f, \"gop_per_s\": %.0f}\n",
          op.c_str(), name.c_str(), us, reference, reference / us, bytes / us * 1e-3, 2e-3 * s.n * s.k * rows / us);
      std::fflush(stdout);
    };
    const double us = time(true);
    double reference = 0.0;
    if (int64_t{s.n} * s.k * 4 <= kPoolBytes) {
      LinearParams p{out.data(), x.data(), pool_, nullptr, rows, s.n, s.k};
      reference = Time([&] { float_(p, context_); });
    }
    print("quant_linear", us, reference);
    if (rows >= kWideRows) print("quant_linear_wide", time(false), us);
  }

 private:
  std::string filter_;
  OpContext context_;
  uint8_t* pool_;
  QuantLinearFn quant_ = nullptr;
  LinearFn float_ = nullptr;
};

}  // namespace
}  // namespace fastllm::ops

int main(int argc, char** argv) {
  using fastllm::ops::QuantFormat;
  fastllm::ops::Bench bench(argc > 1 ? argv[1] : "", argc > 2 ? std::atoi(argv[2]) : 2);
  for (const QuantFormat f : {QuantFormat::kQ4_1, QuantFormat::kQ4_0, QuantFormat::kQ8_0, QuantFormat::kQ5_0}) {
    for (const auto& shape : fastllm::ops::kShapes) {
      for (const int rows : {1, 4, 16, 64, 512}) {
        if (rows <= 64 || shape.n < 49152) bench.Run(f, shape, rows);
      }
    }
  }
  return 0;
}
