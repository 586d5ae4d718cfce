// peer_argmax against the rows in one piece: ties, parts of odd sizes, rows that cannot be sampled.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ops/contract/peer_argmax.h"
#include "peer_ranks.h"
#include "support.h"

namespace fastllm::cuda_check {
namespace {

// Few different values, so that many are largest; some rows with values that are not finite.
std::vector<float> Logits(int32_t rows, int32_t vocab) {
  std::vector<float> v = Normal(static_cast<size_t>(rows) * vocab, 400 + vocab, 3.0f);
  for (float& x : v) x = std::round(x);
  const auto row = [&](int32_t r) { return v.begin() + int64_t{r} * vocab; };
  if (rows < 6) return v;
  *(row(1) + vocab - 2) = NAN;
  std::fill(row(2), row(3), -INFINITY);
  std::fill(row(3), row(4), -INFINITY);
  *(row(3) + vocab / 2 + 1) = -7.0f;
  *(row(4) + 5) = INFINITY;
  std::fill(row(5), row(6), INFINITY);
  return v;
}

int32_t Wanted(const float* row, int32_t vocab) {
  int32_t best = -1;
  bool finite = false;
  for (int32_t i = 0; i < vocab; ++i) {
    if (std::isnan(row[i])) return -1;
    finite |= std::isfinite(row[i]);
    if (row[i] > -INFINITY && (best < 0 || row[i] > row[best])) best = i;
  }
  return finite ? best : -1;
}

struct Part {
  Buffer logits, tokens;
  int32_t width = 0, first = 0;
};

std::vector<Part> Parts(const PeerRanks& ranks, const std::vector<float>& logits, int32_t rows, int32_t vocab) {
  const int32_t share = (vocab + ranks.size() - 1) / ranks.size();
  std::vector<Part> parts;
  for (int32_t r = 0; r < ranks.size(); ++r) {
    ranks.Use(r);
    const int32_t first = r * share, width = std::max(0, std::min(share, vocab - first));
    std::vector<float> own(static_cast<size_t>(rows) * width + 1);
    for (int32_t row = 0; row < rows; ++row) {
      std::copy_n(logits.begin() + int64_t{row} * vocab + first, width, own.begin() + int64_t{row} * width);
    }
    parts.push_back({Upload(own), Buffer(rows * sizeof(int32_t)), width, first});
  }
  return parts;
}

void Launch(const PeerRanks& ranks, int32_t r, const Part& part, int32_t rows) {
  ops::PeerArgmaxParams p{ranks.Params(r, nullptr, 0, false)};
  p.logits = part.logits.as<float>();
  p.tokens = part.tokens.as<int32_t>();
  p.stride = p.width = part.width;
  p.num_rows = rows;
  p.first_id = part.first;
  ops::CudaPeerArgmax()(p, {ranks.at(r).stream, 1});
}

}  // namespace

void CheckPeerArgmax(Checks& c, const PeerRanks& ranks) {
  for (const int32_t vocab : {4000, 1023, 3, 32003}) {
    for (const int32_t rows : {1, 13}) {
      const std::vector<float> logits = Logits(rows, vocab);
      const std::vector<Part> parts = Parts(ranks, logits, rows, vocab);
      for (int call = 0; call < 3; ++call) {
        for (int32_t r = 0; r < ranks.size(); ++r) {
          ranks.Use(r);
          Launch(ranks, r, parts[r], rows);
        }
      }
      const std::string label = "peer_argmax " + std::to_string(rows) + " x " + std::to_string(vocab) + " of " +
                                std::to_string(ranks.size()) + " ranks";
      c.ExpectTrue(label + ": the ranks meet", ranks.Finish());
      std::vector<int32_t> wanted;
      for (int32_t row = 0; row < rows; ++row) wanted.push_back(Wanted(logits.data() + int64_t{row} * vocab, vocab));
      for (int32_t r = 0; r < ranks.size(); ++r) {
        ranks.Use(r);
        c.ExpectTrue(label + ", rank " + std::to_string(r), Download<int32_t>(parts[r].tokens.get(), rows) == wanted);
      }
    }
  }
}

void TimePeerArgmax(const PeerRanks& ranks) {
  constexpr int32_t kVocab = 128256;
  for (const int32_t rows : {1, 64, 256}) {
    const std::vector<float> logits(static_cast<size_t>(rows) * kVocab, 1.0f);
    const std::vector<Part> parts = Parts(ranks, logits, rows, kVocab);
    TimePeerCalls(ranks, "peer_argmax " + std::to_string(rows) + " x " + std::to_string(kVocab),
                  [&](int32_t r) { Launch(ranks, r, parts[r], rows); });
  }
}

}  // namespace fastllm::cuda_check
