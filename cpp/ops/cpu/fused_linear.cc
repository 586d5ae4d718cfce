// The fused products of a decoder layer, plainly: what the CUDA arm is checked against, and how its wiring in the
// models is tested without a GPU. Sums are float64.
#include <cmath>
#include <vector>

#include "core/base/check.h"
#include "ops/cpu/drive.h"
#include "ops/cpu/parallel.h"

namespace fastllm::ops::cpu {
namespace {

struct Product {
  const float* x = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  int32_t rows = 0;
  int32_t n = 0;
  int32_t k = 0;

  double At(int64_t row, int64_t column, double scale) const {
    double sum = 0.0;
    for (int32_t i = 0; i < k; ++i) sum += double{x[row * k + i]} * weight[column * k + i];
    return sum * scale + (bias == nullptr ? 0.0 : bias[column]);
  }
  int64_t work() const { return int64_t{rows} * n * k; }
};

// What the rows of the product are multiplied by.
double ScaleOf(const NormedRows& in, int64_t row, int32_t k) {
  if (in.squares == nullptr) return 1.0;
  const int32_t parts = SquareParts(k);
  double sum = 0.0;
  for (int32_t i = 0; i < parts; ++i) sum += in.squares[row * parts + i];
  return 1.0 / std::sqrt(sum / k + in.eps);
}

void AddRow(const LinearAddParams& p, const Product& product, int64_t row) {
  float* const residual = static_cast<float*>(p.residual) + row * p.n;
  for (int32_t i = 0; i < p.n; ++i) residual[i] = static_cast<float>(residual[i] + product.At(row, i, 1.0));
  if (p.gain == nullptr) return;
  const float* const gain = static_cast<const float*>(p.gain);
  float* const scaled = static_cast<float*>(p.scaled) + row * p.n;
  const int32_t parts = SquareParts(p.n);
  for (int32_t part = 0; part < parts; ++part) {
    double sum = 0.0;
    for (int32_t i = part * kSquareColumns; i < p.n && i < (part + 1) * kSquareColumns; ++i) {
      sum += double{residual[i]} * residual[i];
      scaled[i] = residual[i] * gain[i];
    }
    p.squares[row * parts + part] = static_cast<float>(sum);
  }
}

}  // namespace

void NormLinear(const NormLinearParams& p, const OpContext& ctx) {
  FASTLLM_CHECK(!p.gated || p.bias == nullptr, "norm_linear: gated, with a bias");
  const Product product{static_cast<const float*>(p.in.x), static_cast<const float*>(p.weight),
                        static_cast<const float*>(p.bias), p.num_rows,
                        p.gated ? 2 * p.n : p.n,           p.k};
  float* const out = static_cast<float*>(p.out);
  ParallelRanges(p.num_rows, product.work(), ctx.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const double scale = ScaleOf(p.in, t, p.k);
      for (int32_t i = 0; i < p.n; ++i) {
        const double v = product.At(t, i, scale);
        out[t * p.n + i] = static_cast<float>(p.gated ? v / (1.0 + std::exp(-v)) * product.At(t, p.n + i, scale) : v);
      }
    }
  });
}

void LinearAdd(const LinearAddParams& p, const OpContext& ctx) {
  const Product product{static_cast<const float*>(p.x),
                        static_cast<const float*>(p.weight),
                        static_cast<const float*>(p.bias),
                        p.num_rows,
                        p.n,
                        p.k};
  ParallelRanges(p.num_rows, product.work(), ctx.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) AddRow(p, product, t);
  });
}

void NormQkv(const NormQkvParams& p, const OpContext& ctx) {
  RopeKvWriteParams r = p.rope;
  const KvCacheView& c = r.cache;
  FASTLLM_CHECK(
      r.rotary_dim == c.head_dim && !r.interleaved && r.q_norm_weight == nullptr && r.k_norm_weight == nullptr,
      "norm_qkv: whole heads rotate in the NeoX pairing and have no norms");
  const int32_t q = r.num_q_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim, n = q + 2 * kv;
  thread_local std::vector<float> heads;
  heads.resize(static_cast<size_t>(r.num_tokens) * n);
  NormLinear({heads.data(), p.in, p.weight, p.bias, r.num_tokens, n, p.k, false, {}}, ctx);
  float* const out = static_cast<float*>(r.q);
  const int64_t stride = r.q_stride;
  r.q = heads.data();
  r.k = heads.data() + q;
  r.v = heads.data() + q + kv;
  r.q_stride = r.k_stride = r.v_stride = n;
  RunRopeKvWrite(kPlainKernels, r, ctx);
  for (int64_t t = 0; t < r.num_tokens; ++t) {
    for (int32_t i = 0; i < q; ++i) out[t * stride + i] = heads[static_cast<size_t>(t) * n + i];
  }
}

}  // namespace fastllm::ops::cpu
