// peer_argmax (contract/peer_argmax.h) with threads in place of devices: against the tokens of whole rows. The kernel
// is checked by cuda_check, on a GPU.
#include "ops/contract/peer_argmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "ops/contract/sampling.h"
#include "ops/table/op_table.h"
#include "tests/ops/peer_threads.h"

namespace fastllm::ops {
namespace {

constexpr int32_t kRows = 40, kVocab = 101;

std::vector<float> Logits(uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<float> v(kRows * kVocab);
  for (float& x : v) x = static_cast<float>(rng() % 23);  // many ties
  const auto row = [&](int32_t r) { return v.begin() + int64_t{r} * kVocab; };
  *(row(3) + 77) = NAN;
  std::fill(row(5), row(6), -INFINITY);
  std::fill(row(6), row(7), -INFINITY);
  *(row(6) + 90) = -4.0f;
  *(row(7) + 12) = INFINITY;
  std::fill(row(8), row(9), INFINITY);
  std::fill(row(9), row(9) + 60, -INFINITY);
  return v;
}

std::vector<int32_t> OfWholeRows(const std::vector<float>& logits) {
  const auto sample = BuiltinOps().Resolve<SampleFn>({OpId::kSample, Device::kCpu, DType::kF32});
  EXPECT_TRUE(sample.ok());
  std::vector<int32_t> tokens(kRows);
  const std::vector<SampleRow> greedy(kRows);
  SampleParams p;
  p.logits = logits.data();
  p.tokens = tokens.data();
  p.rows = greedy.data();
  p.logits_stride = kVocab;
  p.num_rows = kRows;
  p.vocab = kVocab;
  (*sample)(p, {});
  return tokens;
}

class PeerArgmax : public ::testing::TestWithParam<int32_t> {};

TEST_P(PeerArgmax, PicksWhatSamplingTheWholeRowPicks) {
  const int32_t size = GetParam();
  const int32_t share = (kVocab + size - 1) / size;
  const int64_t capacity = kRows * kPeerBlockUnits;
  std::vector<std::vector<uint64_t>> boxes(size, std::vector<uint64_t>(PeerBoxBytes(size, capacity) / 8));
  std::vector<std::vector<uint32_t>> epochs(size, std::vector<uint32_t>(PeerBlocks(capacity)));
  const uint32_t stop = 0;
  std::vector<std::vector<float>> logits;
  for (uint32_t call = 0; call < 5; ++call) logits.push_back(Logits(call));
  std::vector<std::vector<std::vector<int32_t>>> got(size);
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      for (const std::vector<float>& whole : logits) {
        got[r].emplace_back(kRows, -7);
        PeerArgmaxParams p;
        p.peers.rank = r;
        p.peers.size = size;
        p.peers.capacity = capacity;
        for (int32_t o = 0; o < size; ++o) p.peers.boxes[o] = boxes[o].data();
        p.peers.epochs = epochs[r].data();
        p.peers.stop = &stop;
        p.logits = whole.data() + r * share;
        p.tokens = got[r].back().data();
        p.stride = kVocab;
        p.num_rows = kRows;
        p.width = std::max(0, std::min(share, kVocab - r * share));
        p.first_id = r * share;
        ASSERT_TRUE(peer_threads::Argmax(p));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (size_t call = 0; call < logits.size(); ++call) {
    const std::vector<int32_t> wanted = OfWholeRows(logits[call]);
    EXPECT_EQ(wanted[3], -1);
    EXPECT_EQ(wanted[6], 90);
    for (int32_t r = 0; r < size; ++r) EXPECT_EQ(got[r][call], wanted) << "rank " << r << ", call " << call;
  }
}
INSTANTIATE_TEST_SUITE_P(Each, PeerArgmax, ::testing::Values(2, 3, 8));

}  // namespace
}  // namespace fastllm::ops
