// dense_linear against float64, at rows on both sides of every tile and at shapes that no tile divides.
#include <cmath>

#include "ops/contract/dense_linear.h"
#include "support.h"

namespace fastllm::cuda_check {
namespace {

constexpr DType kType = DType::kBF16;

struct Shape {
  int rows, n, k;
};

std::vector<double> Reference(const std::vector<float>& x, const std::vector<float>& w, const std::vector<float>& bias,
                              const Shape& s, bool gated) {
  std::vector<double> out(static_cast<size_t>(s.rows) * s.n);
  Parallel(s.n, [&](int64_t i) {
    for (int t = 0; t < s.rows; ++t) {
      double sums[2] = {};
      for (int half = 0; half < (gated ? 2 : 1); ++half) {
        const float* row = &w[(static_cast<size_t>(half) * s.n + i) * s.k];
        for (int k = 0; k < s.k; ++k) sums[half] += double{x[static_cast<size_t>(t) * s.k + k]} * row[k];
      }
      out[static_cast<size_t>(t) * s.n + i] =
          gated ? sums[0] / (1.0 + std::exp(-sums[0])) * sums[1] : sums[0] + (bias.empty() ? 0.0 : bias[i]);
    }
  });
  return out;
}

void Check(Checks& c, const Shape& s, bool gated, bool with_bias, const Buffer& workspace) {
  const size_t weight_rows = static_cast<size_t>(s.n) * (gated ? 2 : 1), count = static_cast<size_t>(s.rows) * s.n;
  auto x = Normal(static_cast<size_t>(s.rows) * s.k, 61),
       w = Normal(weight_rows * s.k, 62, 1.0f / std::sqrt(static_cast<float>(s.k)));
  auto bias = with_bias ? Normal(s.n, 63) : std::vector<float>();
  for (auto* v : {&x, &w, &bias}) Round(*v, kType);
  const Buffer d_x = UploadAs(x, kType), d_w = UploadAs(w, kType),
               d_bias = UploadAs(with_bias ? bias : std::vector<float>(1), kType);
  Buffer out(count * 2 + 64);
  const auto fn = c.Get<ops::DenseLinearFn>(OpId::kDenseLinear, kType);
  const ops::DenseLinearParams p{
      {out.get(), d_x.get(), d_w.get(), with_bias ? d_bias.get() : nullptr, s.rows, s.n, s.k, false},
      gated,
      workspace.get()};
  const std::string label = std::string("dense_linear ") +
                            (gated       ? "gated "
                             : with_bias ? "bias "
                                         : "") +
                            std::to_string(s.rows) + "x" + std::to_string(s.k) + " to " + std::to_string(s.n);
  fn(p, {});
  const auto first = Download<uint16_t>(out.get(), count);
  c.Expect(label, RelativeError(DownloadAs(out.get(), count, kType), Reference(x, w, bias, s, gated)),
           Tolerance(kType));
  // The launch before has left the workspace as the next one needs it.
  out.Poison();
  fn(p, {});
  c.ExpectTrue(label + " again", Download<uint16_t>(out.get(), count) == first);
  c.ExpectTrue(label + " past the end",
               Download<uint16_t>(out.as<char>() + count * 2, 32) == std::vector<uint16_t>(32, uint16_t{0xffff}));
}

}  // namespace

void CheckDenseLinear(Checks& c) {
  Buffer workspace(ops::kDenseWorkspaceBytes);
  workspace.Zero();
  for (const int rows : {1, 17, 32, 33, 64, 65, 127, 128, 129, 255, 256, 257, 513, 700}) {
    const bool odd = rows % 2 != 0;
    Check(c, {rows, 400, 200}, false, odd, workspace);  // k ends within a step
    Check(c, {rows, 208, 136}, true, false, workspace);
    if (c.small) continue;
    Check(c, {rows, 2064, 1024}, false, !odd, workspace);  // tiles that clusters share unevenly
    Check(c, {rows, 1040, 2048}, true, false, workspace);
  }
  // The kernel for few rows: two and three parts of k, one, rows of the weight and k that end within a tile.
  for (const int rows : {17, 32, 33, 63, 64}) {
    Check(c, {rows, 2832, 776}, false, rows % 2 != 0, workspace);
    Check(c, {rows, 8464, 264}, false, rows % 2 == 0, workspace);
    if (!c.small) Check(c, {rows, 6160, 1000}, false, false, workspace);
  }
  if (c.small) return;
  for (const int rows : {64, 256}) {
    Check(c, {rows, 4096, 4096}, false, false, workspace);
    Check(c, {rows, 14336, 256}, true, false, workspace);
    Check(c, {rows, 17408, 256}, false, true, workspace);  // more tiles than blocks, and a cut line after whole ones
  }
}

}  // namespace fastllm::cuda_check
