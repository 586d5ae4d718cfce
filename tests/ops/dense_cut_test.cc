// How dense_linear cuts its tiles: every step of every tile once, and who waits for whom.
#include "cuda/gemm/dense_cut.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fastllm::cuda {
namespace {

std::vector<DensePiece> PiecesOf(const DenseTiles& d, int32_t cluster) {
  std::vector<DensePiece> all;
  DenseWork work(d, cluster);
  for (DensePiece p; work.Next(p);) all.push_back(p);
  return all;
}

std::string Text(const DenseTiles& d, int32_t most) {
  return std::to_string(d.weight_tiles) + " x " + std::to_string(d.token_tiles) + " tiles of " +
         std::to_string(d.steps) + " steps, " + std::to_string(d.clusters) + " of " + std::to_string(most) +
         " clusters";
}

void Check(const DenseTiles& d, int32_t most) {
  SCOPED_TRACE(Text(d, most));
  ASSERT_GE(d.clusters, 1);
  ASSERT_LE(d.clusters, most);
  std::vector<std::vector<int>> done(d.count(), std::vector<int>(d.steps));
  std::set<int32_t> left, awaited;  // clusters that leave sums for another, and those that somebody waits for
  for (int32_t c = 0; c < d.clusters; ++c) {
    const auto pieces = PiecesOf(d, c);
    ASSERT_FALSE(pieces.empty());
    for (size_t i = 0; i < pieces.size(); ++i) {
      const DensePiece& p = pieces[i];
      ASSERT_LT(p.begin, p.end);
      for (int32_t s = p.begin; s < p.end; ++s) ++done.at(p.tile).at(s);
      if (p.begin > 0) {
        // What others wait for comes first, once for each cluster: there is room for one tile of sums.
        EXPECT_TRUE(p.tile < d.whole || i == 0 || pieces[i - 1].tile < d.whole);
        EXPECT_TRUE(left.insert(c).second);
      } else if (p.end < d.steps) {
        const int32_t last = LastOfTile(d, p, c);
        ASSERT_LT(last, c);
        ASSERT_LE(c - last, kDenseMostPieces + 1);
        for (int32_t other = c - 1; other >= last; --other) EXPECT_TRUE(awaited.insert(other).second);
      }
    }
  }
  for (const auto& steps : done) {
    for (const int n : steps) ASSERT_EQ(n, 1);
  }
  EXPECT_EQ(left, awaited);
}

TEST(DenseCut, EveryStepIsDoneOnceAndEveryPieceIsAwaited) {
  std::mt19937 random(7);
  const auto pick = [&random](int32_t most) { return static_cast<int32_t>(random() % most) + 1; };
  for (int i = 0; i < 800; ++i) {
    const DenseTiling t{static_cast<DenseCut>(random() % 2), pick(9)};
    const int32_t most = i % 2 == 0 ? 66 : pick(132);
    Check(CutDense(pick(i % 3 == 0 ? 4 : 60), pick(6), pick(230), t, most), most);
  }
}

TEST(DenseCut, PlacesAreAllTilesInBands) {
  for (const int32_t band : {1, 3, 8, 20}) {
    const DenseTiles d = CutDense(7, 11, 4, {DenseCut::kWhole, band}, 132);
    std::set<std::pair<int32_t, int32_t>> seen;
    int32_t before = 0;
    for (int32_t tile = 0; tile < d.count(); ++tile) {
      const DensePlace p = PlaceOf(d, tile);
      EXPECT_TRUE(p.weight >= 0 && p.weight < 7 && p.token >= 0 && p.token < 11) << tile;
      EXPECT_TRUE(seen.emplace(p.weight, p.token).second) << tile;
      EXPECT_GE(p.token / band, before);
      before = p.token / band;
    }
  }
}

TEST(DenseCut, TheLastWavesAreCutAndNoOthers) {
  const DenseTiles many = CutDense(112, 64, 64, {DenseCut::kLine, 8}, 66);  // 108.6 waves
  EXPECT_EQ(many.whole, 107 * 66);
  EXPECT_EQ(many.clusters, 66);
  const DenseTiles full = CutDense(66, 2, 64, {DenseCut::kLine, 8}, 66);
  EXPECT_EQ(full.whole, 132);
  const DenseTiles few = CutDense(16, 1, 64, {DenseCut::kLine, 1}, 66);
  EXPECT_EQ(few.whole, 0);
  EXPECT_EQ(few.clusters, 66);
  EXPECT_EQ(CutDense(1, 1, 3, {DenseCut::kLine, 1}, 66).clusters, 3);
}

}  // namespace
}  // namespace fastllm::cuda
