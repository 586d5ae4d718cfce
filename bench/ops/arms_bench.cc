// Every arm of the linears over 16-bit and 8-bit weights on this machine: first each against the plain arm, then their
// times at the shapes of SmolLM2-135M.
//   arms_bench [name filter] [threads]
// Less than a minute. Ends with status 1 when an arm is outside the bound of its contract. A line per arm for the
// check, and per case RESULT {"name", "value" in microseconds, "reference" (the same on the AVX-512 or AVX2 arm without
// BF16 and AMX), "ratio"} with GB/s of weights read and G operations (two for each product) a second.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "ops/contract/half_linear.h"
#include "ops/contract/quant_linear.h"
#include "ops/cpu/isa.h"
#include "timer.h"
#include "weight_pool.h"

namespace fastllm::ops {
namespace {

constexpr int64_t kPoolBytes = int64_t{192} << 20;  // copies of a weight, so that each call reads it from memory
constexpr int kGroups = 5;

// What is multiplied: a 16-bit type, or 8-bit blocks with groups of x of 16.
struct Kind {
  const char* name;
  bool quantised;
  DType dtype;
  QuantFormat format;
};
constexpr Kind kKinds[] = {
    {"bf16", false, DType::kBF16, QuantFormat::kQ8_0}, {"f16", false, DType::kF16, QuantFormat::kQ8_0},
    {"q8_0", true, DType::kF32, QuantFormat::kQ8_0},   {"q4_0", true, DType::kF32, QuantFormat::kQ4_0},
    {"q4_1", true, DType::kF32, QuantFormat::kQ4_1},   {"q4_k", true, DType::kF32, QuantFormat::kQ4_K}};

int64_t BytesOf(const Kind& kind, int n, int k) {
  return kind.quantised ? PackedBytes(kind.format, n, k) : HalfBytes(n, k);
}

class Arm {
 public:
  explicit Arm(CpuIsa isa) {
    OpTable table;
    RegisterCpuOps(table, isa);
    half_ = table.Resolve<HalfLinearFn>({OpId::kHalfLinear, Device::kCpu, DType::kF32}).value();
    quant_ = table.Resolve<QuantLinearFn>({OpId::kQuantLinear, Device::kCpu, DType::kF32}).value();
  }
  void Run(const Kind& kind, const uint8_t* weight, const float* x, float* out, int rows, int n, int k,
           int threads) const {
    const OpContext context{nullptr, threads};
    if (kind.quantised) {
      const QuantWeight w = {weight, n, k, kind.format};
      QuantLinearParams p;
      p.out = out, p.x = x, p.parts = &w, p.num_parts = 1, p.num_rows = rows, p.n = n, p.k = k, p.x_group = 16;
      return quant_(p, context);
    }
    const HalfWeight w = {reinterpret_cast<const uint16_t*>(weight), n, k, kind.dtype};
    half_({out, x, &w, nullptr, 1, rows, n, k}, context);
  }

 private:
  HalfLinearFn half_;
  QuantLinearFn quant_;
};

std::vector<float> RandomRows(int64_t count) {
  std::mt19937_64 rng(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = normal(rng);
  return x;
}

// The largest difference to the plain arm, relative to the largest output of the row.
double Difference(const Arm& arm, const Arm& plain, const Kind& kind, const uint8_t* weight, int rows, int n, int k) {
  const std::vector<float> x = RandomRows(int64_t{rows} * k);
  std::vector<float> want(static_cast<size_t>(rows) * n), got(want.size());
  plain.Run(kind, weight, x.data(), want.data(), rows, n, k, 1);
  arm.Run(kind, weight, x.data(), got.data(), rows, n, k, 2);
  double worst = 0.0;
  for (int r = 0; r < rows; ++r) {
    double largest = 0.0;
    for (int i = 0; i < n; ++i) largest = std::max(largest, std::abs(double{want[r * n + i]}));
    for (int i = 0; i < n; ++i) {
      const double e = std::abs(double{got[r * n + i]} - want[r * n + i]) / largest;
      if (!(e <= worst)) worst = e;
    }
  }
  return worst;
}

// Arms agree in the bits where the contract says so, else within the rounding of float32 sums.
bool Check(CpuIsa isa, const uint8_t* pool) {
  const Arm arm(isa), plain(CpuIsa::kPlain);
  bool good = true;
  for (const Kind& kind : kKinds) {
    double worst = 0.0;
    for (const int rows : {1, 5, 16, 37}) worst = std::max(worst, Difference(arm, plain, kind, pool, rows, 100, 768));
    const double bound = kind.quantised || kind.dtype == DType::kF16 ? 0.0 : 1e-5;
    const bool fits = worst <= bound;
    std::printf("check %s %s: difference %.3g, bound %.3g: %s\n", CpuIsaName(isa), kind.name, worst, bound,
                fits ? "ok" : "FAILED");
    good &= fits;
  }
  return good;
}

class Bench {
 public:
  Bench(std::string filter, int threads, uint8_t* pool) : filter_(std::move(filter)), threads_(threads), pool_(pool) {}

  void Run(CpuIsa isa, const Kind& kind, const Shape& s, int rows) {
    const std::string what =
        std::string(kind.name) + "." + s.name + "." + std::to_string(rows) + "row.t" + std::to_string(threads_);
    const std::string name = "ops.arms." + what + "." + CpuIsaName(isa);
    if (name.find(filter_) == std::string::npos) return;
    const Arm arm(isa);
    const std::vector<float> x = RandomRows(int64_t{rows} * s.k);
    std::vector<float> out(static_cast<size_t>(rows) * s.n);
    const int64_t bytes = (BytesOf(kind, s.n, s.k) + 63) / 64 * 64;
    const int64_t copies = kPoolBytes / bytes;
    int64_t turn = 0;
    const auto call = [&] {
      arm.Run(kind, pool_ + turn++ % copies * bytes, x.data(), out.data(), rows, s.n, s.k, threads_);
    };
    call();
    const int repeat = std::max(1, static_cast<int>(4000.0 / std::max(0.05, MicrosecondsOf(call))));
    double us = 1e300;
    for (int g = 0; g < kGroups; ++g) {
      us = std::min(us, MicrosecondsOf([&] {
                          for (int i = 0; i < repeat; ++i) call();
                        }) / repeat);
    }
    double& reference = reference_[what];
    if (reference == 0.0) reference = us;
    std::printf(
        "RESULT {\"name\": \"%s\", \"value\": %.2f, \"unit\": \"us\", \"reference\": %.2f, \"ratio\": %.2f, "
        "\"gb_per_s\": %.1f, \"gop_per_s\": %.0f}\n",
        name.c_str(), us, reference, reference / us, bytes / us * 1e-3, 2e-3 * s.n * s.k * rows / us);
    std::fflush(stdout);
  }

 private:
  std::string filter_;
  int threads_;
  uint8_t* pool_;
  std::map<std::string, double> reference_;  // the first arm's
};

int Main(const std::string& filter, int threads) {
  // Numbers that are finite and of moderate size in both 16-bit types.
  uint8_t* const pool = RandomPool(kPoolBytes, 0xBBFF, 0x2000);
  const CpuIsa best = DetectCpuIsa();
  std::printf("best arm of this machine: %s\n", CpuIsaName(best));
  bool good = true;
  for (int i = 1; i <= static_cast<int>(best); ++i) good &= Check(static_cast<CpuIsa>(i), pool);
  Bench bench(filter, threads, pool);
  for (const CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512Vnni, CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
    if (isa > best) continue;
    if (isa == CpuIsa::kAvx2 && best >= CpuIsa::kAvx512Vnni) continue;
    for (const Kind& kind : kKinds) {
      for (const Shape& shape : kShapes) {
        for (const int rows : {1, 4, 16, 64, 512}) {
          // 576 values of k are no multiple of the 256 of a K block: the time of so many blocks all the same.
          if (rows <= 64 || shape.n < 49152) bench.Run(isa, kind, shape, rows);
        }
      }
    }
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace fastllm::ops

int main(int argc, char** argv) {
  return fastllm::ops::Main(argc > 1 ? argv[1] : "", argc > 2 ? std::atoi(argv[2]) : 2);
}
