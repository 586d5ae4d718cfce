// quant_pick: the tokens that greedy sampling finds in the logits of quant_linear, on every arm.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "core/base/check.h"
#include "ops/contract/sampling.h"
#include "quant_support.h"
#include "support.h"

namespace fastllm::ops {
namespace {

class QuantPick : public ArmTest {
 protected:
  std::vector<int32_t> Pick(const std::vector<float>& x, const QuantWeight& w, int32_t rows, int32_t threads) {
    std::vector<int32_t> tokens(rows + 1, -77);
    Get<QuantPickFn>(OpId::kQuantPick)({tokens.data(), x.data(), &w, rows, w.n, w.k}, OpContext{nullptr, threads});
    EXPECT_EQ(tokens.back(), -77) << "written past the end";
    tokens.pop_back();
    return tokens;
  }

  // The two ops of this arm.
  std::vector<int32_t> Apart(const std::vector<float>& x, const QuantWeight& w, int32_t rows) {
    std::vector<float> logits(int64_t{rows} * w.n);
    QuantLinearParams p;
    p.out = logits.data();
    p.x = x.data();
    p.parts = &w;
    p.num_parts = 1;
    p.num_rows = rows;
    p.n = w.n;
    p.k = w.k;
    Get<QuantLinearFn>(OpId::kQuantLinear)(p, OpContext{nullptr, 2});
    const std::vector<SampleRow> greedy(rows);
    std::vector<int32_t> tokens(rows);
    SampleParams s;
    s.logits = logits.data();
    s.tokens = tokens.data();
    s.rows = greedy.data();
    s.logits_stride = w.n;
    s.num_rows = rows;
    s.vocab = w.n;
    Get<SampleFn>(OpId::kSample)(s, OpContext{nullptr, 2});
    return tokens;
  }
};

TEST_P(QuantPick, FindsWhatSamplingFinds) {
  for (const WeightType type : kTypes) {
    const int32_t k = runtime::WeightBlockElements(type) == 256 ? 256 : 96;
    for (const int32_t n : {1, 255, 256, 1003}) {
      const Packed w = MakePacked(type, n, k, 81);
      for (const int32_t rows : {1, 8, 71}) {
        const auto x = RandomNormal(int64_t{rows} * k, 82 + rows);
        const std::vector<int32_t> want = Apart(x, w.weight, rows);
        for (const int32_t threads : {1, 2, 3}) {
          EXPECT_EQ(Pick(x, w.weight, rows, threads), want)
              << WeightTypeName(type) << ", n " << n << ", rows " << rows << ", threads " << threads;
        }
      }
    }
  }
}

// A row of zeros has equal logits everywhere, so the first column is its token, whichever thread finds it.
TEST_P(QuantPick, TiesGoToTheLowestColumn) {
  const int32_t n = 4000, k = 64, rows = 9;
  const Packed w = MakePacked(WeightType::kQ8_0, n, k, 83);
  std::vector<float> x = RandomNormal(int64_t{rows} * k, 84);
  for (int32_t i = 0; i < k; ++i) x[3 * k + i] = 0.0f;
  const std::vector<int32_t> tokens = Pick(x, w.weight, rows, 2);
  EXPECT_EQ(tokens[3], 0);
  EXPECT_EQ(tokens, Apart(x, w.weight, rows));
}

// A NaN in a row leaves it without a token and the others with theirs.
TEST_P(QuantPick, ARowWithANanHasNoToken) {
  const int32_t n = 3000, k = 64, rows = 12;
  const Packed w = MakePacked(WeightType::kQ4_1, n, k, 85);
  std::vector<float> x = RandomNormal(int64_t{rows} * k, 86);
  const std::vector<int32_t> before = Pick(x, w.weight, rows, 2);
  x[5 * k + 7] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<int32_t> tokens = Pick(x, w.weight, rows, 2);
  EXPECT_EQ(tokens[5], -1);
  for (int32_t r = 0; r < rows; ++r) {
    if (r != 5) {
      EXPECT_EQ(tokens[r], before[r]) << r;
    }
  }
}

TEST_P(QuantPick, RefusesAWeightOfAnotherSize) {
  const Packed w = MakePacked(WeightType::kQ8_0, 32, 64, 87);
  const std::vector<float> x(64, 1.0f);
  int32_t token = 0;
  EXPECT_THROW(Get<QuantPickFn>(OpId::kQuantPick)({&token, x.data(), &w.weight, 1, 48, 64}, {}), InternalError);
}

FASTLLM_INSTANTIATE_ARMS(QuantPick);

}  // namespace
}  // namespace fastllm::ops
