// The fused products against the ops that they stand for, one after another.
#include "ops/contract/fused_linear.h"

#include "ops/contract/linear.h"
#include "ops/contract/rms_norm.h"
#include "ops/contract/silu_mul.h"
#include "support.h"

namespace fastllm::ops {
namespace {

using FusedLinear = ArmTest;

constexpr float kEps = 1e-3f;

std::vector<double> Wide(const std::vector<float>& v) { return {v.begin(), v.end()}; }

// h as linear_add leaves it for the norm with `gain`.
struct Left {
  std::vector<float> residual, scaled, squares;
};

Left AddNothing(LinearAddFn fn, const std::vector<float>& h, const std::vector<float>& gain, int rows) {
  const auto n = static_cast<int32_t>(gain.size());
  const std::vector<float> zeros(static_cast<size_t>(rows) * 8), weight(static_cast<size_t>(n) * 8);
  Left left{h, std::vector<float>(h.size(), NAN), std::vector<float>(static_cast<size_t>(rows) * SquareParts(n), NAN)};
  fn({left.residual.data(),
      zeros.data(),
      weight.data(),
      nullptr,
      gain.data(),
      left.scaled.data(),
      left.squares.data(),
      rows,
      n,
      8,
      {}},
     {});
  return left;
}

TEST_P(FusedLinear, AddAddsTheProductToTheResidual) {
  for (const int rows : {1, 5, 17}) {
    for (const int n : {8, 128, 200}) {
      constexpr int kK = 72;
      const auto x = RandomNormal(rows * kK, 1), w = RandomNormal(n * kK, 2), bias = RandomNormal(n, 3),
                 gain = RandomNormal(n, 4), h = RandomNormal(rows * n, 5);
      auto want = h;
      std::vector<float> product(h.size());
      Get<LinearFn>(OpId::kLinear)({product.data(), x.data(), w.data(), bias.data(), rows, n, kK, false}, {});
      for (size_t i = 0; i < h.size(); ++i) want[i] += product[i];
      Left left{h, std::vector<float>(h.size(), NAN), std::vector<float>(rows * SquareParts(n), NAN)};
      Get<LinearAddFn>(OpId::kLinearAdd)({left.residual.data(),
                                          x.data(),
                                          w.data(),
                                          bias.data(),
                                          gain.data(),
                                          left.scaled.data(),
                                          left.squares.data(),
                                          rows,
                                          n,
                                          kK,
                                          {}},
                                         {nullptr, 2});
      EXPECT_LT(MaxError(left.residual, Wide(want)), 1e-5);
      for (int t = 0; t < rows; ++t) {
        const int parts = SquareParts(n);
        std::vector<double> squares(parts);
        for (int i = 0; i < n; ++i) {
          EXPECT_EQ(left.scaled[t * n + i], left.residual[t * n + i] * gain[i]);
          squares[i / kSquareColumns] += double{left.residual[t * n + i]} * left.residual[t * n + i];
        }
        for (int i = 0; i < parts; ++i) {
          EXPECT_NEAR(left.squares[t * parts + i], squares[i], 1e-5 * squares[i]);
        }
      }
    }
  }
}

TEST_P(FusedLinear, WithoutGainOnlyTheResidualIsWritten) {
  std::vector<float> h = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<float> x(8, 1.0f), w(64, 0.5f);
  Get<LinearAddFn>(OpId::kLinearAdd)({h.data(), x.data(), w.data(), nullptr, nullptr, nullptr, nullptr, 1, 8, 8, {}},
                                     {});
  EXPECT_EQ(h, (std::vector<float>{5, 6, 7, 8, 9, 10, 11, 12}));
}

// The norm before a product, the product, and SiLU-mul of its halves.
TEST_P(FusedLinear, NormBeforeAndSiluMulAfter) {
  constexpr int kRows = 3, kK = 264, kN = 40;
  const auto h = RandomNormal(kRows * kK, 6, 3.0f), gain = RandomNormal(kK, 7), bias = RandomNormal(2 * kN, 9);
  const auto w = RandomNormal(2 * kN * kK, 8, 0.1f);
  const Left left = AddNothing(Get<LinearAddFn>(OpId::kLinearAdd), h, gain, kRows);
  std::vector<float> normed(h.size()), both(kRows * 2 * kN), gated(kRows * kN);
  Get<RmsNormFn>(OpId::kRmsNorm)({normed.data(), h.data(), nullptr, gain.data(), kRows, kK, kEps}, {});
  const auto linear = Get<LinearFn>(OpId::kLinear);
  const auto fused = Get<NormLinearFn>(OpId::kNormLinear);
  std::vector<float> out(both.size(), NAN);
  for (const bool normed_already : {false, true}) {
    const NormedRows in = normed_already ? NormedRows{normed.data(), nullptr, kEps}
                                         : NormedRows{left.scaled.data(), left.squares.data(), kEps};
    linear({both.data(), normed.data(), w.data(), bias.data(), kRows, 2 * kN, kK, false}, {});
    fused({out.data(), in, w.data(), bias.data(), kRows, 2 * kN, kK, false, {}}, {nullptr, 2});
    EXPECT_LT(MaxError(out, Wide(both)), 1e-5);
    linear({both.data(), normed.data(), w.data(), nullptr, kRows, 2 * kN, kK, false}, {});
    Get<SiluMulFn>(OpId::kSiluMul)({gated.data(), both.data(), kRows, kN}, {});
    std::vector<float> act(gated.size(), NAN);
    fused({act.data(), in, w.data(), nullptr, kRows, kN, kK, true, {}}, {});
    EXPECT_LT(MaxError(act, Wide(gated)), 1e-5);
  }
}

// q, and what lands in the cache, as rms_norm, linear and rope_kv_write leave them.
TEST_P(FusedLinear, QkvRotatesAndWritesTheCache) {
  constexpr int kRows = 4, kK = 40, kQ = 4, kKv = 2, kDim = 64, kN = (kQ + 2 * kKv) * kDim, kBlocks = 5, kSize = 4;
  const auto h = RandomNormal(kRows * kK, 6, 3.0f), gain = RandomNormal(kK, 7), bias = RandomNormal(kN, 9);
  const auto w = RandomNormal(kN * kK, 8, 0.3f), table = RandomNormal(30 * kDim, 10);
  const std::vector<int32_t> positions = {3, 29, 0, 7};
  const std::vector<int64_t> slots = {6, -1, 19, 0};
  const Left left = AddNothing(Get<LinearAddFn>(OpId::kLinearAdd), h, gain, kRows);
  std::vector<float> normed(h.size()), qkv(kRows * kN), q(kRows * kN, -9.0f);
  std::vector<float> cache[4];
  for (auto& c : cache) c.assign(kBlocks * kKv * kSize * kDim, -7.0f);
  Get<RmsNormFn>(OpId::kRmsNorm)({normed.data(), h.data(), nullptr, gain.data(), kRows, kK, kEps}, {});
  Get<LinearFn>(OpId::kLinear)({qkv.data(), normed.data(), w.data(), bias.data(), kRows, kN, kK, false}, {});
  RopeKvWriteParams r;
  r.cache = {cache[0].data(), cache[1].data(), kBlocks, kKv, kSize, kDim};
  r.q = qkv.data();
  r.k = qkv.data() + kQ * kDim;
  r.v = qkv.data() + (kQ + kKv) * kDim;
  r.cos_sin = table.data();
  r.positions = positions.data();
  r.slot_mapping = slots.data();
  r.q_stride = r.k_stride = r.v_stride = kN;
  r.num_tokens = kRows;
  r.num_q_heads = kQ;
  r.rotary_dim = kDim;
  Get<RopeKvWriteFn>(OpId::kRopeKvWrite)(r, {});
  NormQkvParams p{{left.scaled.data(), left.squares.data(), kEps}, w.data(), bias.data(), kK, r, {}};
  p.rope.q = q.data();
  p.rope.cache.k = cache[2].data();
  p.rope.cache.v = cache[3].data();
  Get<NormQkvFn>(OpId::kNormQkv)(p, {nullptr, 2});
  for (int t = 0; t < kRows; ++t) {
    for (int i = 0; i < kN; ++i) {
      const bool is_q = i < kQ * kDim;
      EXPECT_NEAR(q[t * kN + i], is_q ? qkv[t * kN + i] : -9.0f, is_q ? 1e-4 : 0.0) << t << "," << i;
    }
  }
  EXPECT_LT(MaxError(cache[2], Wide(cache[0])), 1e-5);
  EXPECT_LT(MaxError(cache[3], Wide(cache[1])), 1e-5);
}

FASTLLM_INSTANTIATE_ARMS(FusedLinear);

}  // namespace
}  // namespace fastllm::ops
