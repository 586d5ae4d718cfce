#include "ops/contract/kv_cache.h"

#include "core/base/check.h"
#include "support.h"

namespace fastllm::ops {
namespace {

using KvWrite = ArmTest;

TEST_P(KvWrite, PutsEachTokenInItsSlotAndTouchesNothingElse) {
  const auto fn = Get<KvWriteFn>(OpId::kKvWrite);
  for (const int block_size : {1, 8, 16, 32}) {
    const int blocks = 64 / block_size + 1, heads = 3, dim = 20, tokens = 9, stride = heads * dim + 7;
    const size_t cache_size = static_cast<size_t>(blocks) * heads * block_size * dim;
    std::vector<float> kc(cache_size, -7.0f), vc(cache_size, -8.0f);
    const auto k = RandomNormal(tokens * stride, 1), v = RandomNormal(tokens * stride, 2);
    std::vector<int64_t> slots = {5, 63, 0, -1, 17, 18, 40, -9, 31};
    auto want_k = kc, want_v = vc;
    for (int t = 0; t < tokens; ++t) {
      if (slots[t] < 0) continue;
      for (int h = 0; h < heads; ++h) {
        for (int d = 0; d < dim; ++d) {
          const size_t at =
              ((slots[t] / block_size * heads + h) * block_size + slots[t] % block_size) * static_cast<size_t>(dim) + d;
          want_k[at] = k[t * stride + h * dim + d];
          want_v[at] = v[t * stride + h * dim + d];
        }
      }
    }
    KvWriteParams p;
    p.cache = {kc.data(), vc.data(), blocks, heads, block_size, dim};
    p.k = k.data();
    p.v = v.data();
    p.slot_mapping = slots.data();
    p.k_stride = p.v_stride = stride;
    p.num_tokens = tokens;
    fn(p, {nullptr, 2});
    EXPECT_EQ(kc, want_k) << block_size;
    EXPECT_EQ(vc, want_v) << block_size;

    slots[2] = int64_t{blocks} * block_size;
    EXPECT_THROW(fn(p, {}), InternalError);
  }
}

FASTLLM_INSTANTIATE_ARMS(KvWrite);

}  // namespace
}  // namespace fastllm::ops
