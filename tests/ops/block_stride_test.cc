// A cache whose blocks lie apart (KvCacheView::block_stride) holds and gives the same as one whose blocks follow one
// another, to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "attention_support.h"
#include "ops/contract/attention.h"
#include "ops/contract/kv_cache.h"
#include "support.h"

namespace fastllm::ops {
namespace {

constexpr uint8_t kGap = 0xFF;  // between blocks: NaN in every type

// Blocks of K and V in turn, with a gap after each pair.
struct Apart {
  std::vector<uint8_t> memory;
  KvCacheView view;
  int64_t block_bytes;
  int64_t stride_bytes;

  Apart(const KvCacheView& close, DType type) : view(close) {
    view.dtype = type;
    const int64_t elements = int64_t{close.num_kv_heads} * close.block_size * close.head_dim;
    block_bytes = elements * DTypeSize(type);
    view.block_stride = 2 * elements + 48;
    stride_bytes = view.block_stride * DTypeSize(type);
    memory.assign(static_cast<size_t>(stride_bytes * close.num_blocks), kGap);
    view.k = memory.data();
    view.v = memory.data() + block_bytes;
  }
  void Copy(const void* k, const void* v) {
    for (int64_t b = 0; b < view.num_blocks; ++b) {
      std::memcpy(static_cast<uint8_t*>(view.k) + b * stride_bytes, static_cast<const uint8_t*>(k) + b * block_bytes,
                  static_cast<size_t>(block_bytes));
      std::memcpy(static_cast<uint8_t*>(view.v) + b * stride_bytes, static_cast<const uint8_t*>(v) + b * block_bytes,
                  static_cast<size_t>(block_bytes));
    }
  }
};

class BlockStride : public ArmTest {};

TEST_P(BlockStride, AttentionGivesTheSameBits) {
  const auto fn = Get<PagedAttentionFn>(OpId::kPagedAttention, kFeatureGqa);
  const std::vector<Seq> mix = {{70, 33}, {1, 1}, {300, 1}, {64, 64}, {129, 2}};
  std::vector<int> ids(mix.size());
  std::iota(ids.begin(), ids.end(), 1);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    Batch b(Shape{9, 3, 64, 16}, mix, ids, 5);
    PagedAttentionParams p = b.Params();
    const auto size = static_cast<size_t>(DTypeSize(type));
    std::vector<uint8_t> k(b.k.size() * size, kGap), v(k);
    KvCacheView narrow = p.cache;
    narrow.dtype = type;
    narrow.k = k.data();
    narrow.v = v.data();
    std::vector<int64_t> slots(b.k.size() / (3 * 64));
    std::iota(slots.begin(), slots.end(), 0);
    // As the cache holds them: [block, head, row], here written head by head through the op that rounds.
    std::vector<float> rows_k(b.k.size()), rows_v(b.v.size());
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      for (size_t h = 0; h < 3; ++h) {
        const size_t from = ((slot / 16 * 3 + h) * 16 + slot % 16) * 64;
        std::copy_n(&b.k[from], 64, &rows_k[(slot * 3 + h) * 64]);
        std::copy_n(&b.v[from], 64, &rows_v[(slot * 3 + h) * 64]);
      }
    }
    const auto write = Get<KvWriteFn>(OpId::kKvWrite);
    KvWriteParams w{narrow, rows_k.data(), rows_v.data(), slots.data(), 192, 192, static_cast<int32_t>(slots.size())};
    write(w, {nullptr, 2});
    Apart apart(narrow, type), copied(narrow, type);
    w.cache = apart.view;
    write(w, {nullptr, 2});
    copied.Copy(k.data(), v.data());
    ASSERT_EQ(apart.memory, copied.memory) << static_cast<int>(type);

    p.cache = narrow;
    fn(p, {nullptr, 2});
    const std::vector<float> want = b.out;
    std::fill(b.out.begin(), b.out.end(), 0.0f);
    p.cache = apart.view;
    fn(p, {nullptr, 2});
    ASSERT_EQ(std::memcmp(b.out.data(), want.data(), want.size() * sizeof(float)), 0) << static_cast<int>(type);
  }
}

FASTLLM_INSTANTIATE_ARMS(BlockStride);

}  // namespace
}  // namespace fastllm::ops
