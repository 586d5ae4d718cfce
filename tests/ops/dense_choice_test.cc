// How the CUDA kernels of dense_linear are launched, without a device.
#include "cuda/launch/dense_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace fastllm::cuda {
namespace {

constexpr int32_t kMultiprocessors = 132;

TEST(DenseChoice, FewRowsShareKAsFarAsTheDeviceHoldsTheBlocks) {
  // qkv, o and down of Llama-3.1-8B.
  EXPECT_EQ(FewSplits(64, 48, 64, kMultiprocessors), 2);
  EXPECT_EQ(FewSplits(64, 32, 64, kMultiprocessors), 3);
  EXPECT_EQ(FewSplits(64, 32, 224, kMultiprocessors), 3);
  for (const int32_t tiles : {22, 43, 44, 45, 66, 67, 131, 132}) {
    for (const int32_t steps : {12, 64}) {
      const int32_t splits = FewSplits(64, tiles, steps, kMultiprocessors);
      EXPECT_GE(splits, 1) << tiles << " " << steps;
      EXPECT_LE(splits, 3);
      EXPECT_LE(splits * tiles, kMultiprocessors);
    }
  }
  for (const int32_t steps : {1, 3, 4, 7, 8, 11}) {
    EXPECT_LE(FewSplits(64, 44, steps, kMultiprocessors), std::max(1, steps / 4)) << "a block with too few steps";
  }
}

TEST(DenseChoice, KIsSharedByShapeAlone) {
  for (const int32_t rows : {17, 32, 33, 48, 64}) EXPECT_EQ(FewSplits(rows, 32, 64, kMultiprocessors), 3) << rows;
}

TEST(DenseChoice, OtherProductsAreNotForTheKernelOfFewRows) {
  for (const int32_t rows : {1, 16, 65, 128}) EXPECT_EQ(FewSplits(rows, 32, 64, kMultiprocessors), 0) << rows;
  EXPECT_EQ(FewSplits(64, 133, 64, kMultiprocessors), 0);
  EXPECT_EQ(FewSplits(64, 21, 64, kMultiprocessors), 0);
}

TEST(DenseChoice, OnlyTheProductBehindAttentionFetchesMore) {
  EXPECT_GT(FewAhead(4096, 4096), 0);
  for (const auto& [n, k] : {std::pair{6144, 4096}, {4096, 14336}}) EXPECT_EQ(FewAhead(n, k), 0) << n;
}

}  // namespace
}  // namespace fastllm::cuda
