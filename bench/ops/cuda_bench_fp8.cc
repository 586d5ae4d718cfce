// 8-bit floats at the shapes of Llama-3.1-8B: rows to 8 bits, and products of few rows beside vLLM's cutlass_scaled_mm
// (on the same kind of GPU, by the same method).
#include "bench/ops/cuda_bench.h"
#include "ops/contract/fp8.h"

namespace fastllm::cuda_bench {
namespace {

constexpr DType kType = DType::kBF16;

struct Shape {
  const char* name;
  int n, k;
  double vllm_us[4];  // at 1, 8, 32 and 64 rows
};

constexpr Shape kShapes[] = {
    {"qkv", 6144, 4096, {9.3, 9.46, 11.3, 9.39}},
    {"o", 4096, 4096, {8.82, 8.36, 9.8, 9.17}},
    {"gate_up", 28672, 4096, {38.87, 39.62, 50.05, 39.74}},
    {"down", 4096, 14336, {20.13, 20.18, 25.75, 20.74}},
};

void Linear(Bench& b, const Shape& s, int m, double vllm_us) {
  const size_t weights = static_cast<size_t>(s.n) * s.k, x_one = static_cast<size_t>(m) * s.k;
  const size_t out_one = static_cast<size_t>(m) * s.n * 2;
  const double bytes = static_cast<double>(weights + x_one + out_one) + 4.0 * (s.n + m);
  const int sets = SetsFor(bytes);
  const Buffer w = RandomBuffer(weights * sets, DType::kF8E4M3, 1), x = RandomBuffer(x_one * sets, DType::kF8E4M3, 2),
               w_scale = RandomBuffer(s.n, DType::kF32, 3), x_scale = RandomBuffer(m, DType::kF32, 4),
               out(out_one * sets);
  const auto fn = b.Get<ops::Fp8LinearFn>(OpId::kFp8Linear, kType);
  b.Time({"fp8_linear " + std::string(s.name), "M=" + std::to_string(m), bytes, 0.0, vllm_us}, sets,
         [&](int set, void* stream) {
           fn({out.as<char>() + set * out_one,
               {x.as<uint8_t>() + set * x_one, x_scale.as<float>()},
               {w.as<uint8_t>() + set * weights, w_scale.as<float>()},
               nullptr,
               m,
               s.n,
               s.k},
              {stream, 1});
         });
}

void Rows(Bench& b, int m) {
  constexpr int kHidden = 4096, kInner = 14336;
  const size_t wide = static_cast<size_t>(m) * 2 * kInner, narrow = static_cast<size_t>(m) * kHidden;
  const int sets = SetsFor(2.0 * wide);
  const Buffer in = RandomBuffer(wide * sets, kType, 1), residual = RandomBuffer(narrow * sets, kType, 2),
               weight = RandomBuffer(kHidden, kType, 3), q(static_cast<size_t>(m) * kInner * sets),
               scale(static_cast<size_t>(m) * 4);
  const std::string shape = "M=" + std::to_string(m);
  const auto out = [&](int set) {
    return ops::Fp8Rows{q.as<uint8_t>() + static_cast<size_t>(set) * m * kInner, scale.as<float>()};
  };
  const auto x = [&](int set) { return in.as<char>() + set * wide * 2; };
  const auto quantize = b.Get<ops::QuantizeFp8Fn>(OpId::kQuantizeFp8, kType);
  b.Time({"quantize_fp8 4096", shape, 3.0 * narrow}, sets,
         [&](int set, void* stream) { quantize({out(set), x(set), m, kHidden}, {stream, 1}); });
  const auto norm = b.Get<ops::RmsNormFp8Fn>(OpId::kRmsNormFp8, kType);
  b.Time({"rms_norm_fp8 4096", shape, 7.0 * narrow}, sets, [&](int set, void* stream) {
    norm({nullptr, x(set), residual.as<char>() + set * narrow * 2, weight.get(), m, kHidden, 1e-5f}, out(set),
         {stream, 1});
  });
  const auto silu = b.Get<ops::SiluMulFp8Fn>(OpId::kSiluMulFp8, kType);
  b.Time({"silu_mul_fp8 14336", shape, 2.5 * wide}, sets,
         [&](int set, void* stream) { silu({nullptr, x(set), m, kInner}, out(set), {stream, 1}); });
}

}  // namespace

void BenchFp8(Bench& b) {
  if (!b.Wanted("fp8")) return;
  for (const Shape& s : kShapes) {
    constexpr int kRows[] = {1, 8, 32, 64};
    for (int i = 0; i < 4; ++i) Linear(b, s, kRows[i], s.vllm_us[i]);
    Linear(b, s, 16, 0.0);
    Linear(b, s, 128, 0.0);
  }
  for (const int m : {1, 64, 128, 256, 512, 1024, 8192}) Rows(b, m);
}

}  // namespace fastllm::cuda_bench
