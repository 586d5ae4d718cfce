// linear for few rows at the shapes of Llama-3.1-8B, beside cuBLAS (bench/RESULTS.md says where that was measured).
#include "bench/ops/cuda_bench.h"
#include "ops/contract/fused_linear.h"
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

// Buffers of one fused product, `sets` times over where they are large.
struct Fused {
  Fused(int rows, int hidden, size_t weights)
      : sets(SetsFor(2.0 * weights)),
        weights_one(weights),
        w(RandomBuffer(weights * sets, kType, 1)),
        x(RandomBuffer(static_cast<size_t>(rows) * 14336, kType, 2)),
        out(RandomBuffer(static_cast<size_t>(rows) * 14336, kType, 3)),
        scaled(static_cast<size_t>(rows) * hidden * 2),
        gain(RandomBuffer(hidden, kType, 4)),
        squares(cuda_check::Upload(std::vector<float>(static_cast<size_t>(rows) * ops::SquareParts(hidden), 10.0f))) {}
  char* weight(int set) const { return w.as<char>() + set * weights_one * 2; }
  ops::NormedRows in() const { return {x.get(), squares.as<float>(), 1e-5f}; }

  int sets;
  size_t weights_one;
  Buffer w, x, out, scaled, gain, squares;
};

void FusedQkv(Bench& b, int m) {
  constexpr int kHidden = 4096, kRows = 6144, kDim = 128;
  const Fused f(m, kHidden, size_t{kRows} * kHidden);
  const Buffer k = RandomBuffer(size_t{256} * 8 * 16 * kDim, kType, 6),
               v = RandomBuffer(size_t{256} * 8 * 16 * kDim, kType, 7),
               table = RandomBuffer(size_t{1024} * kDim, DType::kF32, 8);
  std::vector<int32_t> positions(m);
  std::vector<int64_t> slots(m);
  for (int i = 0; i < m; ++i) positions[i] = i * 3, slots[i] = i * 16;
  const Buffer d_positions = cuda_check::Upload(positions), d_slots = cuda_check::Upload(slots);
  const auto fn = b.Get<ops::NormQkvFn>(OpId::kNormQkv, kType);
  b.Time({"fused norm_qkv", "M=" + std::to_string(m), 2.0 * kRows * kHidden + 2.0 * m * (kHidden + kRows),
          2.0 * m * kRows * kHidden},
         f.sets, [&](int set, void* stream) {
           ops::NormQkvParams p{f.in(), f.weight(set), nullptr, kHidden, {}, {}};
           p.rope.cache = {k.get(), v.get(), 256, 8, 16, kDim, kType};
           p.rope.q = f.out.get();
           p.rope.cos_sin = table.as<float>();
           p.rope.positions = d_positions.as<int32_t>();
           p.rope.slot_mapping = d_slots.as<int64_t>();
           p.rope.q_stride = kRows;
           p.rope.num_tokens = m;
           p.rope.num_q_heads = 32;
           p.rope.rotary_dim = kDim;
           fn(p, {stream, 1});
         });
}

void FusedGateUp(Bench& b, int m) {
  constexpr int kHidden = 4096, kRows = 14336;
  const Fused f(m, kHidden, size_t{2} * kRows * kHidden);
  const auto fn = b.Get<ops::NormLinearFn>(OpId::kNormLinear, kType);
  b.Time({"fused gate_up+silu", "M=" + std::to_string(m), 4.0 * kRows * kHidden + 2.0 * m * (kHidden + kRows),
          4.0 * m * kRows * kHidden},
         f.sets, [&](int set, void* stream) {
           fn({f.out.get(), f.in(), f.weight(set), nullptr, m, kRows, kHidden, true, {}}, {stream, 1});
         });
}

void FusedAdd(Bench& b, const char* name, int m, int k) {
  constexpr int kHidden = 4096;
  const Fused f(m, kHidden, static_cast<size_t>(k) * kHidden);
  const auto fn = b.Get<ops::LinearAddFn>(OpId::kLinearAdd, kType);
  b.Time({"fused " + std::string(name) + "+add", "M=" + std::to_string(m),
          2.0 * k * kHidden + 2.0 * m * (k + 3 * kHidden), 2.0 * m * k * kHidden},
         f.sets, [&](int set, void* stream) {
           fn({f.out.get(),
               f.x.get(),
               f.weight(set),
               nullptr,
               f.gain.get(),
               f.scaled.get(),
               f.squares.as<float>(),
               m,
               kHidden,
               k,
               {}},
              {stream, 1});
         });
}

void BenchFused(Bench& b) {
  if (!b.Wanted("fused")) return;
  for (const int m : {1, 2, 4, 8}) {
    FusedQkv(b, m);
    FusedAdd(b, "o", m, 4096);
    FusedGateUp(b, m);
    FusedAdd(b, "down", m, 14336);
  }
}

}  // namespace

void BenchLinear(Bench& b) {
  BenchFused(b);
  if (!b.Wanted("linear")) return;
  constexpr int kRows[] = {1, 8, 16, 32};
  for (const Shape& s : kShapes) {
    for (int i = 0; i < 4; ++i) Linear(b, s, kRows[i], s.cublas_us[i]);
  }
}

}  // namespace fastllm::cuda_bench
