// 8-bit floats on the device: rows bit for bit against the CPU arm, products against float64.
#include <cmath>
#include <random>

#include "ops/contract/fp8.h"
#include "support.h"

namespace fastllm::cuda_check {
namespace {

struct HostRows {
  std::vector<uint8_t> q;
  std::vector<float> scale;
  ops::Fp8Rows view() { return {q.data(), scale.data()}; }
};

HostRows CpuRows(const std::vector<float>& x, int rows, int k) {
  static const auto fn =
      *ops::BuiltinOps().Resolve<ops::QuantizeFp8Fn>({OpId::kQuantizeFp8, ops::Device::kCpu, DType::kF32});
  HostRows r{std::vector<uint8_t>(x.size()), std::vector<float>(rows)};
  fn({r.view(), x.data(), rows, k}, {nullptr, 8});
  return r;
}

struct DeviceRows {
  Buffer q, scale;
  DeviceRows(int rows, int k) : q(static_cast<size_t>(rows) * k), scale(static_cast<size_t>(rows) * sizeof(float)) {}
  explicit DeviceRows(const HostRows& r) : q(Upload(r.q)), scale(Upload(r.scale)) {}
  ops::Fp8Rows view() const { return {q.as<uint8_t>(), scale.as<float>()}; }
};

std::string Label(const char* op, DType t, int rows, int n) {
  return std::string(op) + " " + Name(t) + " " + std::to_string(rows) + "x" + std::to_string(n);
}

// The value that a code stands for.
double Decoded(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  if ((code & 0x7F) == 0x7F) return NAN;
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

std::vector<float> Values(const std::vector<uint8_t>& q, const std::vector<float>& scale, int k) {
  std::vector<float> v(q.size());
  for (size_t i = 0; i < q.size(); ++i) v[i] = static_cast<float>(Decoded(q[i]) * scale[i / k]);
  return v;
}

// Same scales and codes, NaN being equal to NaN.
void ExpectSame(Checks& c, const std::string& label, const DeviceRows& got, const HostRows& want) {
  c.ExpectTrue(label + " codes", Download<uint8_t>(got.q.get(), want.q.size()) == want.q);
  c.ExpectTrue(label + " scales", Download<float>(got.scale.get(), want.scale.size()) == want.scale);
}

void CheckQuantize(Checks& c, DType t, int rows, int k) {
  auto x = Normal(static_cast<size_t>(rows) * k, 51, 5.0f);
  for (int i = 0; i < k; ++i) x[i] = 0.0f;
  if (rows > 2) x[2 * k + k / 2] = NAN;
  Round(x, t);
  const Buffer in = UploadAs(x, t);
  const DeviceRows got(rows, k);
  c.Get<ops::QuantizeFp8Fn>(OpId::kQuantizeFp8, t)({got.view(), in.get(), rows, k}, {});
  ExpectSame(c, Label("quantize_fp8", t, rows, k), got, CpuRows(x, rows, k));
}

// Against the separate ops: a code may differ by a step where their sums round otherwise, so values are compared.
void ExpectClose(Checks& c, const std::string& label, const DeviceRows& got, const std::vector<float>& x, int rows,
                 int k) {
  const HostRows want = CpuRows(x, rows, k);
  const auto values = Values(want.q, want.scale, k);
  const auto q = Download<uint8_t>(got.q.get(), want.q.size());
  const auto scale = Download<float>(got.scale.get(), want.scale.size());
  // What one step of a code in a thousand comes to.
  c.Expect(label, RelativeError(Values(q, scale, k), {values.begin(), values.end()}), 3e-3);
  size_t other = 0;
  for (size_t i = 0; i < q.size(); ++i) other += q[i] != want.q[i];
  c.Expect(label + " share of other codes", static_cast<double>(other) / static_cast<double>(q.size()), 2e-3);
}

void CheckNorm(Checks& c, DType t, int rows, int hidden, bool with_residual) {
  const size_t n = static_cast<size_t>(rows) * hidden;
  auto x = Normal(n, 52), residual = Normal(n, 53, 2.0f), weight = Normal(hidden, 54);
  for (auto* v : {&x, &residual, &weight}) Round(*v, t);
  const Buffer d_x = UploadAs(x, t), d_weight = UploadAs(weight, t), stored = UploadAs(residual, t),
               reference = UploadAs(residual, t);
  Buffer normed(n * ops::DTypeSize(t));
  const DeviceRows got(rows, hidden);
  ops::RmsNormParams p{nullptr, d_x.get(), with_residual ? stored.get() : nullptr, d_weight.get(), rows, hidden, 1e-5f};
  c.Get<ops::RmsNormFp8Fn>(OpId::kRmsNormFp8, t)(p, got.view(), {});
  p.out = normed.get();
  p.residual = with_residual ? reference.get() : nullptr;
  c.Get<ops::RmsNormFn>(OpId::kRmsNorm, t)(p, {});
  const auto label = Label(with_residual ? "rms_norm_fp8+residual" : "rms_norm_fp8", t, rows, hidden);
  ExpectClose(c, label, got, DownloadAs(normed.get(), n, t), rows, hidden);
  const auto want = DownloadAs(reference.get(), n, t);
  c.Expect(label + " stored", RelativeError(DownloadAs(stored.get(), n, t), {want.begin(), want.end()}), 0.0);
}

void CheckSilu(Checks& c, DType t, int rows, int n) {
  auto gate_up = Normal(static_cast<size_t>(rows) * 2 * n, 55, 3.0f);
  Round(gate_up, t);
  const Buffer in = UploadAs(gate_up, t);
  Buffer out(static_cast<size_t>(rows) * n * ops::DTypeSize(t));
  const DeviceRows got(rows, n);
  c.Get<ops::SiluMulFp8Fn>(OpId::kSiluMulFp8, t)({nullptr, in.get(), rows, n}, got.view(), {});
  c.Get<ops::SiluMulFn>(OpId::kSiluMul, t)({out.get(), in.get(), rows, n}, {});
  ExpectClose(c, Label("silu_mul_fp8", t, rows, n), got, DownloadAs(out.get(), static_cast<size_t>(rows) * n, t), rows,
              n);
}

void CheckLinear(Checks& c, DType t, int rows, int n, int k, bool with_bias) {
  HostRows x = CpuRows(Normal(static_cast<size_t>(rows) * k, 56), rows, k);
  HostRows w = CpuRows(Normal(static_cast<size_t>(n) * k, 57), n, k);
  auto bias = Normal(n, 58, 10.0f);
  Round(bias, t);
  std::vector<double> want(static_cast<size_t>(rows) * n);
  const auto xv = Values(x.q, std::vector<float>(rows, 1.0f), k), wv = Values(w.q, std::vector<float>(n, 1.0f), k);
  Parallel(n, [&](int64_t o) {
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0.0;
      for (int i = 0; i < k; ++i) sum += double{xv[r * k + i]} * wv[o * k + i];
      want[r * n + o] = sum * x.scale[r] * w.scale[o] + (with_bias ? bias[o] : 0.0f);
    }
  });
  const DeviceRows dx(x), dw(w);
  const Buffer d_bias = UploadAs(bias, t);
  Buffer out(want.size() * ops::DTypeSize(t));
  const auto fn = c.Get<ops::Fp8LinearFn>(OpId::kFp8Linear, t);
  fn({out.get(), dx.view(), dw.view(), with_bias ? d_bias.get() : nullptr, rows, n, k}, {});
  const auto label = Label("fp8_linear", t, rows, n) + " of " + std::to_string(k) + (with_bias ? " bias" : "");
  const auto got = DownloadAs(out.get(), want.size(), t);
  c.Expect(label, RelativeError(got, want), t == DType::kF32 ? 2e-4 : Tolerance(t));
  // Of up to 64, a row has the same bits alone.
  if (rows == 1 || rows > 64) return;
  Buffer alone(static_cast<size_t>(n) * ops::DTypeSize(t));
  const ops::Fp8Rows last{dx.q.as<uint8_t>() + static_cast<size_t>(rows - 1) * k, dx.scale.as<float>() + rows - 1};
  fn({alone.get(), last, dw.view(), with_bias ? d_bias.get() : nullptr, 1, n, k}, {});
  const std::vector<float> of_all(got.end() - n, got.end());
  c.ExpectTrue(label + ": the same bits alone", DownloadAs(alone.get(), n, t) == of_all);
}

// dense_fp8_linear against float64, at rows on both sides of every tile and at shapes that no tile divides.
struct DenseCase {
  int rows, n, k;
  bool gated, with_bias;
};

std::vector<double> DenseReference(const DenseCase& d, const HostRows& x, const HostRows& w,
                                   const std::vector<float>& bias) {
  const auto xv = Values(x.q, x.scale, d.k), wv = Values(w.q, w.scale, d.k);
  std::vector<double> want(static_cast<size_t>(d.rows) * d.n);
  Parallel(d.n, [&](int64_t o) {
    for (int64_t r = 0; r < d.rows; ++r) {
      double sums[2] = {};
      for (int half = 0; half < (d.gated ? 2 : 1); ++half) {
        const float *a = &xv[r * d.k], *b = &wv[(int64_t{half} * d.n + o) * d.k];
        for (int i = 0; i < d.k; ++i) sums[half] += double{a[i]} * b[i];
      }
      want[r * d.n + o] = d.gated ? sums[0] / (1.0 + std::exp(-sums[0])) * sums[1] : sums[0] + bias[o];
    }
  });
  return want;
}

void CheckDense(Checks& c, const DenseCase& d, const Buffer& workspace) {
  const int weight_rows = d.n * (d.gated ? 2 : 1);
  HostRows x = CpuRows(Normal(static_cast<size_t>(d.rows) * d.k, 59), d.rows, d.k);
  HostRows w = CpuRows(Normal(static_cast<size_t>(weight_rows) * d.k, 60, 1.0f / std::sqrt(static_cast<float>(d.k))),
                       weight_rows, d.k);
  for (int r = 0; r < weight_rows; ++r) w.scale[r] *= 1.0f + 0.01f * static_cast<float>(r % 100);
  auto bias = Normal(d.n, 61, d.with_bias ? 3.0f : 0.0f);
  Round(bias, DType::kBF16);
  const auto want = DenseReference(d, x, w, bias);
  const DeviceRows dx(x), dw(w);
  const Buffer d_bias = UploadAs(bias, DType::kBF16);
  Buffer out(want.size() * 2 + 64);
  const auto fn = c.Get<ops::DenseFp8LinearFn>(OpId::kDenseFp8Linear, DType::kBF16);
  const ops::DenseFp8LinearParams p{
      {out.get(), dx.view(), dw.view(), d.with_bias ? d_bias.get() : nullptr, d.rows, d.n, d.k},
      d.gated,
      workspace.get()};
  const auto label = Label(d.gated ? "dense_fp8_linear gated" : "dense_fp8_linear", DType::kBF16, d.rows, d.n) +
                     " of " + std::to_string(d.k) + (d.with_bias ? " bias" : "");
  fn(p, {});
  const auto first = Download<uint16_t>(out.get(), want.size());
  c.Expect(label, RelativeError(DownloadAs(out.get(), want.size(), DType::kBF16), want), Tolerance(DType::kBF16));
  // The launch before has left the workspace as the next one needs it.
  out.Poison();
  fn(p, {});
  c.ExpectTrue(label + " again", Download<uint16_t>(out.get(), want.size()) == first);
  c.ExpectTrue(label + " past the end",
               Download<uint16_t>(out.as<char>() + want.size() * 2, 32) == std::vector<uint16_t>(32, uint16_t{0xffff}));
}

void CheckDenseCases(Checks& c) {
  Buffer workspace(ops::kDenseWorkspaceBytes);
  workspace.Zero();
  for (const int rows : {1, 17, 64, 65, 127, 128, 129, 192, 193, 255, 256, 257, 500}) {
    const bool odd = rows % 2 != 0;
    CheckDense(c, {rows, 400, 208, false, odd}, workspace);  // k ends within a step
    CheckDense(c, {rows, 208, 144, true, false}, workspace);
    if (c.small) continue;
    CheckDense(c, {rows, 1040, 2176, false, !odd}, workspace);  // cut along k, shared unevenly
    CheckDense(c, {rows, 1040, 1024, true, false}, workspace);
  }
  if (c.small) return;
  for (const int rows : {100, 150, 256}) {
    CheckDense(c, {rows, 17408, 256, false, true}, workspace);  // more tiles than blocks
    CheckDense(c, {rows, 9216, 256, true, false}, workspace);   // and a cut line after whole ones
  }
}

}  // namespace

void CheckFp8(Checks& c) {
  CheckDenseCases(c);
  for (const DType t : kAllTypes) {
    for (const int rows : {1, 3, 64, 700}) {
      if (c.small && rows > 3) continue;
      for (const int k : {4096, 14336, 576, 100, 33, 1}) {
        if ((c.small && k > 600) || (rows > 64 && k > 5000)) continue;
        CheckQuantize(c, t, rows, k);
        CheckNorm(c, t, rows, k, false);
        CheckNorm(c, t, rows, k, true);
        CheckSilu(c, t, rows, k);
      }
    }
    for (const int rows : {1, 7, 8, 9, 16, 31, 33, 64, 65, 150, 257}) {
      if (c.small && rows > 9) continue;
      CheckLinear(c, t, rows, 48, 272, true);
      CheckLinear(c, t, rows, 512, 1024, false);
      if (!c.small && t == DType::kBF16 && (rows == 1 || rows == 33)) CheckLinear(c, t, rows, 6144, 4096, false);
    }
    if (!c.small && t == DType::kBF16) CheckLinear(c, t, 5, 1024, 14336, true);
  }
}

}  // namespace fastllm::cuda_check
