// linear for few rows at the shapes of Llama-3.1-8B, beside cuBLAS (bench/RESULTS.md says where that was measured).
#include "bench/ops/cuda_bench.h"
#include "ops/contract/linear.h"

namespace fastllm::cuda_bench {
namespace {

constexpr DType kType = DType::kBF16;

struct Shape {
  const char* name;
  int n, k;
  bool gated, f32;
  double cublas_us[4];  // at 1, 8, 16 and 32 rows; 0: not measured
};

constexpr Shape kShapes[] = {
    {"qkv", 6144, 4096, false, false, {15.88, 15.98, 0, 16.48}},
    {"o", 4096, 4096, false, false, {13.85, 13.88, 0, 14.24}},
    {"gate_up", 28672, 4096, false, false, {63.35, 63.68, 0, 64.78}},
    {"gate_up+silu", 14336, 4096, true, false, {63.35, 63.68, 0, 64.78}},
    {"down", 4096, 14336, false, false, {33.7, 34.15, 0, 35.81}},
    {"lm_head", 128256, 4096, false, true, {254.96, 255.68, 0, 267.61}},
};

void Linear(Bench& b, const Shape& s, int m, double cublas_us) {
  const size_t weights = static_cast<size_t>(s.n) * s.k * (s.gated ? 2 : 1);
  const double bytes = 2.0 * weights + 2.0 * m * s.k + (s.f32 ? 4.0 : 2.0) * m * s.n;
  const int sets = SetsFor(bytes);
  const size_t x_one = static_cast<size_t>(m) * s.k, out_one = static_cast<size_t>(m) * s.n * (s.f32 ? 4 : 2);
  const Buffer w = RandomBuffer(weights * sets, kType, 1), x = RandomBuffer(x_one * sets, kType, 2),
               out(out_one * sets);
  const auto fn = b.Get<ops::LinearFn>(s.gated ? OpId::kLinearSiluMul : OpId::kLinear, kType);
  b.Time({"linear " + std::string(s.name), "M=" + std::to_string(m), bytes, 0.0, cublas_us}, sets,
         [&](int set, void* stream) {
           fn({out.as<char>() + set * out_one, x.as<char>() + set * x_one * 2, w.as<char>() + set * weights * 2,
               nullptr, m, s.n, s.k, s.f32},
              {stream, 1});
         });
}

}  // namespace

void BenchLinear(Bench& b) {
  if (!b.Wanted("linear")) return;
  constexpr int kRows[] = {1, 8, 16, 32};
  for (const Shape& s : kShapes) {
    for (int i = 0; i < 4; ++i) Linear(b, s, kRows[i], s.cublas_us[i]);
  }
}

}  // namespace fastllm::cuda_bench
