// How the CUDA kernels of 8-bit floats are launched, without a device.
#include "cuda/launch/fp8_choice.h"

#include <gtest/gtest.h>

namespace fastllm::cuda {
namespace {

constexpr int32_t kMultiprocessors = 132;

TEST(Fp8Choice, KIsSharedByShapeAloneUpTo64Rows) {
  for (const int32_t tiles : {1, 5, 32, 48, 66, 67, 224}) {
    for (const int32_t steps : {1, 4, 8, 32, 112}) {
      const int32_t splits = ChooseFp8(1, tiles, steps, kMultiprocessors).splits;
      for (const int32_t rows : {8, 9, 17, 33, 64}) {
        EXPECT_EQ(ChooseFp8(rows, tiles, steps, kMultiprocessors).splits, splits) << tiles << " " << steps;
      }
      EXPECT_LE(splits, steps);
    }
  }
}

TEST(Fp8Choice, TilesAreAsNarrowAsTheRows) {
  const int32_t want[][2] = {{1, 8}, {8, 8}, {9, 16}, {17, 32}, {33, 64}, {65, 128}, {700, 128}};
  for (const auto& [rows, tokens] : want) EXPECT_EQ(ChooseFp8(rows, 32, 32, kMultiprocessors).tokens, tokens);
}

TEST(Fp8Choice, BlocksShareAMultiprocessorWhereThereAreMore) {
  // o and down of 4096 and gate_up of 28672, at 64 rows.
  const Fp8Choice o = ChooseFp8(64, 32, 32, kMultiprocessors), down = ChooseFp8(64, 32, 112, kMultiprocessors),
                  gate_up = ChooseFp8(64, 224, 32, kMultiprocessors);
  EXPECT_EQ(o.splits, 2);
  EXPECT_EQ(o.blocks, 1);
  EXPECT_EQ(down.splits, 3);
  EXPECT_EQ(down.blocks, 1);
  EXPECT_EQ(gate_up.splits, 1);
  EXPECT_EQ(gate_up.blocks, 2);
  EXPECT_EQ(ChooseFp8(1, 32, 32, kMultiprocessors).blocks, 2);
  EXPECT_EQ(ChooseFp8(65, 224, 32, kMultiprocessors).blocks, 1);
  EXPECT_EQ(ChooseFp8(65, 32, 32, kMultiprocessors).splits, 3);
}

TEST(Fp8Choice, DenseTilesAreCutWhereTheyAreFewAndLong) {
  EXPECT_EQ(ChooseFp8Dense(100, 28672, 4096, false).tile, Fp8DenseTile::k128x128);
  EXPECT_EQ(ChooseFp8Dense(100, 28672, 4096, false).tiling.cut, DenseCut::kWhole);
  EXPECT_EQ(ChooseFp8Dense(150, 4096, 14336, false).tile, Fp8DenseTile::k128x192);
  EXPECT_EQ(ChooseFp8Dense(150, 4096, 14336, false).tiling.cut, DenseCut::kLine);
  EXPECT_EQ(ChooseFp8Dense(150, 6144, 4096, false).tile, Fp8DenseTile::k128x128Pair);
  EXPECT_EQ(ChooseFp8Dense(256, 4096, 14336, false).tile, Fp8DenseTile::k128x128Pair);
  EXPECT_EQ(ChooseFp8Dense(256, 14336, 4096, true).tiling.cut, DenseCut::kLine);
}

TEST(Fp8Choice, RowsStayWhereTheyAreMany) {
  EXPECT_FALSE(StaysForFp8Rows(4 * kMultiprocessors, kMultiprocessors));
  EXPECT_TRUE(StaysForFp8Rows(4 * kMultiprocessors + 1, kMultiprocessors));
}

}  // namespace
}  // namespace fastllm::cuda
