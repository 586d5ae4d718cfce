// How the kernel of dense_linear shares tiles and steps of k among clusters of blocks, without a word of CUDA: the
// kernel runs it on the device, tests/ops/dense_cut_test.cc on the host.
#pragma once

#include <algorithm>
#include <cstdint>

#ifdef __CUDACC__
#define FASTLLM_DENSE_FN __host__ __device__ __forceinline__
#else
#define FASTLLM_DENSE_FN inline
#endif

namespace fastllm::cuda {

enum class DenseCut {
  kWhole,  // tiles are not cut
  kLine,   // those that do not fill the device evenly are, into pieces of equal length
};

struct DenseTiling {
  DenseCut cut = DenseCut::kLine;
  int32_t band = 8;  // neighbouring token tiles that are taken before the next rows of the weight
};

inline constexpr int32_t kDenseMostPieces = 16;  // of a tile; a thread of 128 waits for each

// The tiles of a launch, each the work of one cluster.
struct DenseTiles {
  int32_t weight_tiles = 0;
  int32_t token_tiles = 0;
  int32_t steps = 0;  // of k, for each tile
  int32_t band = 1;
  int32_t whole = 0;  // tiles that clusters take in turn; the steps of the others are one line, cut into equal pieces
  int32_t clusters = 0;  // that are launched

  FASTLLM_DENSE_FN int32_t count() const { return weight_tiles * token_tiles; }
  // The first step in the line of a cluster. Clusters of higher numbers come earlier in it.
  FASTLLM_DENSE_FN int32_t StartOf(int32_t cluster) const {
    return static_cast<int32_t>(int64_t{count() - whole} * steps * (clusters - 1 - cluster) / clusters);
  }
};

// most: clusters that the device holds at once.
inline DenseTiles CutDense(int32_t weight_tiles, int32_t token_tiles, int32_t steps, const DenseTiling& t,
                           int32_t most) {
  DenseTiles d{weight_tiles, token_tiles, steps, std::max(t.band, 1), 0, most};
  const int32_t tiles = d.count();
  if (t.cut == DenseCut::kWhole || tiles % most == 0) {
    d.whole = tiles;
    d.clusters = std::min(tiles, most);
  } else if (tiles > most) {
    d.whole = (tiles / most - 1) * most;
  } else {
    d.clusters =
        static_cast<int32_t>(std::min<int64_t>({most, int64_t{tiles} * steps, int64_t{tiles} * kDenseMostPieces}));
  }
  return d;
}

// A part of a tile: its steps [begin, end).
struct DensePiece {
  int32_t tile;
  int32_t begin;
  int32_t end;
};

// The pieces of one cluster, in their order. A tile that is cut belongs to the cluster with its first steps, which
// comes to it last; the others have done their piece first thing, and are clusters of lower numbers, which started
// before. So nobody waits long, and nobody for a block that could not start.
class DenseWork {
 public:
  FASTLLM_DENSE_FN DenseWork(const DenseTiles& d, int32_t cluster)
      : tile_(cluster), whole_(d.whole), clusters_(d.clusters), steps_(d.steps), at_(d.StartOf(cluster)) {
    last_ = d.StartOf(cluster - 1);
  }
  FASTLLM_DENSE_FN bool Next(DensePiece& p) {
    if (tile_ < whole_) {
      p = {tile_, 0, steps_};
      tile_ += clusters_;
      return true;
    }
    if (at_ >= last_) return false;
    const int32_t t = at_ / steps_, begin = at_ - t * steps_, left = begin + last_ - at_;
    p = {whole_ + t, begin, left < steps_ ? left : steps_};
    at_ += p.end - begin;
    return true;
  }

 private:
  int32_t tile_;
  int32_t whole_;
  int32_t clusters_;
  int32_t steps_;
  int32_t at_;  // in the line
  int32_t last_;
};

// The clusters below `cluster`, whose piece p of a cut tile begins it, that have the rest of the tile, in the order of
// its steps: cluster - 1 down to the result.
FASTLLM_DENSE_FN int32_t LastOfTile(const DenseTiles& d, const DensePiece& p, int32_t cluster) {
  const int32_t tile_end = (p.tile - d.whole + 1) * d.steps;
  int32_t last = cluster;
  while (last > 0 && d.StartOf(last - 1) < tile_end) --last;
  return last;
}

// Where a tile lies, in tiles.
struct DensePlace {
  int32_t weight;
  int32_t token;
};

FASTLLM_DENSE_FN DensePlace PlaceOf(const DenseTiles& d, int32_t tile) {
  const int32_t per_band = d.band * d.weight_tiles, band = tile / per_band, in_band = tile - band * per_band;
  const int32_t left = d.token_tiles - band * d.band, width = left < d.band ? left : d.band;
  const int32_t weight = in_band / width;
  return {weight, band * d.band + in_band - weight * width};
}

}  // namespace fastllm::cuda
