// The fused products of a decoder layer (contract/fused_linear.h) against the CPU arm, whose sums are float64.
#include <cmath>
#include <thread>

#include "ops/contract/fused_linear.h"
#include "support.h"

namespace fastllm::cuda_check {
namespace {

constexpr DType kType = DType::kBF16;

struct Shape {
  int rows, n, k;
  bool bias = false;
  std::string Label(const char* op) const {
    return std::string(op) + " " + std::to_string(rows) + "x" + std::to_string(k) + " to " + std::to_string(n) +
           (bias ? " bias" : "");
  }
};

std::vector<float> Rounded(size_t n, uint64_t seed, float scale = 1.0f) {
  auto v = Normal(n, seed, scale);
  Round(v, kType);
  return v;
}

std::vector<double> Wide(const std::vector<float>& v) { return {v.begin(), v.end()}; }

template <typename Fn>
Fn Oracle(OpId op) {
  static const ops::OpTable table = [] {
    ops::OpTable t;
    ops::RegisterCpuOps(t);
    return t;
  }();
  return *table.Resolve<Fn>({op, ops::Device::kCpu, DType::kF32});
}

ops::OpContext AllThreads() { return {nullptr, static_cast<int32_t>(std::thread::hardware_concurrency())}; }

// Input rows and what the norm of them needs, on both sides.
struct Rows {
  std::vector<float> x, squares;
  Buffer d_x, d_squares;
  bool normed;

  Rows(int rows, int k, bool normed_already) : normed(normed_already) {
    x = Rounded(static_cast<size_t>(rows) * k, 1);
    squares = Normal(static_cast<size_t>(rows) * ops::SquareParts(k), 2);
    for (float& s : squares) s = 100.0f * s * s + 1.0f;
    d_x = UploadAs(x, kType);
    d_squares = Upload(squares);
  }
  ops::NormedRows Host() const { return {x.data(), normed ? nullptr : squares.data(), 1e-3f}; }
  ops::NormedRows Device() const { return {d_x.get(), normed ? nullptr : d_squares.as<float>(), 1e-3f}; }
};

void CheckNormLinear(Checks& c, const Shape& s, bool gated, bool normed) {
  const size_t weight_rows = gated ? 2 * s.n : s.n, count = static_cast<size_t>(s.rows) * s.n;
  const Rows in(s.rows, s.k, normed);
  const auto w = Rounded(weight_rows * s.k, 3, 1.0f / std::sqrt(float(s.k))), bias = Rounded(s.n, 4);
  std::vector<float> want(count);
  Oracle<ops::NormLinearFn>(OpId::kNormLinear)(
      {want.data(), in.Host(), w.data(), s.bias ? bias.data() : nullptr, s.rows, s.n, s.k, gated, {}}, AllThreads());
  const Buffer d_w = UploadAs(w, kType), d_bias = UploadAs(bias, kType);
  Buffer out(count * 2);
  const ops::NormLinearParams p{out.get(),
                                in.Device(),
                                d_w.get(),
                                s.bias ? d_bias.get() : nullptr,
                                s.rows,
                                s.n,
                                s.k,
                                gated,
                                {d_w.get(), static_cast<int64_t>(d_w.bytes())}};
  const auto fn = c.Get<ops::NormLinearFn>(OpId::kNormLinear, kType);
  fn(p, {});
  const auto got = DownloadAs(out.get(), count, kType);
  const std::string label = s.Label(gated ? "norm_linear gated" : "norm_linear");
  c.Expect(label, RelativeError(got, Wide(want)), Tolerance(kType));
  out.Poison();
  fn(p, {});
  c.ExpectTrue(label + ", the same bits again", DownloadAs(out.get(), count, kType) == got);
}

void CheckLinearAdd(Checks& c, const Shape& s, bool with_gain) {
  const size_t count = static_cast<size_t>(s.rows) * s.n;
  const int parts = ops::SquareParts(s.n);
  const auto x = Rounded(static_cast<size_t>(s.rows) * s.k, 5), gain = Rounded(s.n, 6), bias = Rounded(s.n, 7),
             w = Rounded(static_cast<size_t>(s.n) * s.k, 8, 1.0f / std::sqrt(float(s.k))), h = Rounded(count, 9, 2.0f);
  auto want = h;
  Oracle<ops::LinearAddFn>(OpId::kLinearAdd)({want.data(),
                                              x.data(),
                                              w.data(),
                                              s.bias ? bias.data() : nullptr,
                                              nullptr,
                                              nullptr,
                                              nullptr,
                                              s.rows,
                                              s.n,
                                              s.k,
                                              {}},
                                             AllThreads());
  const Buffer d_x = UploadAs(x, kType), d_w = UploadAs(w, kType), d_gain = UploadAs(gain, kType),
               d_bias = UploadAs(bias, kType), residual = UploadAs(h, kType);
  Buffer scaled(count * 2), squares(static_cast<size_t>(s.rows) * parts * 4);
  c.Get<ops::LinearAddFn>(OpId::kLinearAdd, kType)({residual.get(),
                                                    d_x.get(),
                                                    d_w.get(),
                                                    s.bias ? d_bias.get() : nullptr,
                                                    with_gain ? d_gain.get() : nullptr,
                                                    with_gain ? scaled.get() : nullptr,
                                                    with_gain ? squares.as<float>() : nullptr,
                                                    s.rows,
                                                    s.n,
                                                    s.k,
                                                    {d_x.get(), static_cast<int64_t>(d_x.bytes())}},
                                                   {});
  const auto got = DownloadAs(residual.get(), count, kType);
  const std::string label = s.Label("linear_add");
  c.Expect(label, RelativeError(got, Wide(want)), Tolerance(kType));
  if (!with_gain) return;
  // Of the residual as it was stored.
  std::vector<double> want_scaled(count), want_squares(static_cast<size_t>(s.rows) * parts);
  for (size_t i = 0; i < count; ++i) {
    want_scaled[i] = double{got[i]} * gain[i % s.n];
    want_squares[i / s.n * parts + i % s.n / ops::kSquareColumns] += double{got[i]} * got[i];
  }
  c.Expect(label + " scaled", RelativeError(DownloadAs(scaled.get(), count, kType), want_scaled), Tolerance(kType));
  c.Expect(label + " squares", RelativeError(Download<float>(squares.get(), want_squares.size()), want_squares), 1e-6);
}

void CheckNormQkv(Checks& c, int rows, int q_heads, int kv_heads, int dim, int k, bool bias, bool normed) {
  constexpr int kPositions = 50, kSize = 16;
  const int n = (q_heads + 2 * kv_heads) * dim, blocks = rows / kSize + 2, pad = 8;
  const Rows in(rows, k, normed);
  const auto w = Rounded(static_cast<size_t>(n) * k, 3, 1.0f / std::sqrt(float(k))), b = Rounded(n, 4),
             table = Normal(static_cast<size_t>(kPositions) * dim, 5);
  std::vector<int32_t> positions(rows);
  std::vector<int64_t> slots(rows);
  for (int i = 0; i < rows; ++i) {
    positions[i] = (i * 17 + 3) % kPositions;
    slots[i] = i % 5 == 3 ? -1 : (i * 7 + 5) % (blocks * kSize);  // 7 and the number of slots have no common factor
    if (blocks * kSize % 7 == 0 && slots[i] >= 0) slots[i] = i;
  }
  const size_t cache = static_cast<size_t>(blocks) * kv_heads * kSize * dim, q_count = size_t(rows) * (n + pad);
  std::vector<float> q(q_count, 0.5f), kc(cache, 0.25f), vc(cache, 0.25f);
  ops::NormQkvParams p{in.Host(), w.data(), bias ? b.data() : nullptr, k, {}, {}};
  p.rope.cache = {kc.data(), vc.data(), blocks, kv_heads, kSize, dim};
  p.rope.q = q.data();
  p.rope.cos_sin = table.data();
  p.rope.positions = positions.data();
  p.rope.slot_mapping = slots.data();
  p.rope.q_stride = n + pad;
  p.rope.num_tokens = rows;
  p.rope.num_q_heads = q_heads;
  p.rope.rotary_dim = dim;
  const Buffer d_q = UploadAs(q, kType), d_k = UploadAs(kc, kType), d_v = UploadAs(vc, kType), d_w = UploadAs(w, kType),
               d_b = UploadAs(b, kType), d_table = Upload(table), d_positions = Upload(positions),
               d_slots = Upload(slots);
  Oracle<ops::NormQkvFn>(OpId::kNormQkv)(p, AllThreads());
  p.in = in.Device();
  p.weight = d_w.get();
  p.bias = bias ? d_b.get() : nullptr;
  p.rope.cache = {d_k.get(), d_v.get(), blocks, kv_heads, kSize, dim, kType};
  p.rope.q = d_q.get();
  p.rope.cos_sin = d_table.as<float>();
  p.rope.positions = d_positions.as<int32_t>();
  p.rope.slot_mapping = d_slots.as<int64_t>();
  p.next = {d_w.get(), static_cast<int64_t>(d_w.bytes())};
  c.Get<ops::NormQkvFn>(OpId::kNormQkv, kType)(p, {});
  const std::string label = Shape{rows, n, k, bias}.Label("norm_qkv") + " dim " + std::to_string(dim);
  c.Expect(label + " q", RelativeError(DownloadAs(d_q.get(), q_count, kType), Wide(q)), Tolerance(kType));
  c.Expect(label + " k", RelativeError(DownloadAs(d_k.get(), cache, kType), Wide(kc)), Tolerance(kType));
  c.Expect(label + " v", RelativeError(DownloadAs(d_v.get(), cache, kType), Wide(vc)), Tolerance(kType));
}

}  // namespace

void CheckFusedLinear(Checks& c) {
  for (const int rows : {1, 2, 3, 4, 7, 8}) {
    const bool odd = rows % 2 != 0;
    CheckNormLinear(c, {rows, 264, 224, odd}, false, false);  // neither blocks nor warps' shares of k divide evenly
    CheckNormLinear(c, {rows, 104, 96}, true, !odd);
    CheckNormLinear(c, {rows, 128, 1024}, false, true);
    CheckLinearAdd(c, {rows, 200, 288, odd}, true);
    CheckLinearAdd(c, {rows, 512, 64}, false);
    for (const int dim : {16, 64, 96, 128, 256}) CheckNormQkv(c, rows, 3, 2, dim, 320, odd, dim == 64);
    if (c.small) continue;
    CheckNormLinear(c, {rows, 3584, 1024}, true, false);
    CheckLinearAdd(c, {rows, 2048, 3584}, true);
    CheckNormQkv(c, rows, 32, 8, 128, 1024, false, false);
    CheckNormQkv(c, rows, 2, 1, 64, 32768, false, false);  // more sums of squares than shared memory has by default
  }
}

}  // namespace fastllm::cuda_check
