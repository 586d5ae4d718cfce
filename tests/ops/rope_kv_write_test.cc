#include "ops/contract/rope_kv_write.h"

#include "core/base/check.h"
#include "support.h"

namespace fastllm::ops {
namespace {

using RopeKvWrite = ArmTest;

struct Shape {
  int tokens = 7, q_heads = 6, kv_heads = 2, dim = 20, rotary = 12, block_size = 8, blocks = 9;
  bool norm = false, interleaved = false;
};

// Norm and rotation of one head in float64, straight from the formulas of rms_norm.h and rope.h.
std::vector<double> Expect(const float* x, const float* weight, const float* cos_sin, const Shape& s, double eps) {
  std::vector<double> v(x, x + s.dim);
  if (weight != nullptr) {
    double sum = 0.0;
    for (const double e : v) sum += e * e;
    for (int d = 0; d < s.dim; ++d) v[d] *= weight[d] / std::sqrt(sum / s.dim + eps);
  }
  const int half = s.rotary / 2;
  for (int i = 0; i < half; ++i) {
    const int a = s.interleaved ? 2 * i : i, b = s.interleaved ? 2 * i + 1 : i + half;
    const double va = v[a], vb = v[b];
    v[a] = va * cos_sin[i] - vb * cos_sin[half + i];
    v[b] = vb * cos_sin[i] + va * cos_sin[half + i];
  }
  return v;
}

class Case {
 public:
  explicit Case(const Shape& shape) : s(shape) {
    stride = (s.q_heads + 2 * s.kv_heads) * s.dim + 3;
    qkv = RandomNormal(static_cast<size_t>(s.tokens) * stride, 11);
    before = qkv;
    table = RandomNormal(static_cast<size_t>(40) * s.rotary, 12);
    qw = RandomNormal(s.dim, 13);
    kw = RandomNormal(s.dim, 14);
    kc.assign(static_cast<size_t>(s.blocks) * s.kv_heads * s.block_size * s.dim, -7.0f);
    vc = kc;
  }

  RopeKvWriteParams Params() {
    RopeKvWriteParams p;
    p.cache = {kc.data(), vc.data(), s.blocks, s.kv_heads, s.block_size, s.dim};
    p.q = qkv.data();
    p.k = qkv.data() + s.q_heads * s.dim;
    p.v = qkv.data() + (s.q_heads + s.kv_heads) * s.dim;
    p.q_norm_weight = s.norm ? qw.data() : nullptr;
    p.k_norm_weight = s.norm ? kw.data() : nullptr;
    p.cos_sin = table.data();
    p.positions = positions.data();
    p.slot_mapping = slots.data();
    p.q_stride = p.k_stride = p.v_stride = stride;
    p.num_tokens = s.tokens;
    p.num_q_heads = s.q_heads;
    p.rotary_dim = s.rotary;
    p.eps = 1e-3f;
    p.interleaved = s.interleaved;
    return p;
  }

  Shape s;
  int stride = 0;
  std::vector<float> qkv, before, table, qw, kw, kc, vc;
  std::vector<int32_t> positions = {5, 0, 39, 17, 3, 3, 21};
  std::vector<int64_t> slots = {33, 71, -1, 0, 8, 15, 64};
};

void ExpectHead(const float* got, const std::vector<double>& want, const char* what) {
  EXPECT_LT(MaxError(std::vector<float>(got, got + want.size()), want), 3e-6) << what;
}

void Check(Case& c) {
  const Shape& s = c.s;
  for (int t = 0; t < s.tokens; ++t) {
    const float* row = c.before.data() + t * c.stride;
    const float* cos_sin = c.table.data() + c.positions[t] * s.rotary;
    for (int h = 0; h < s.q_heads; ++h) {
      ExpectHead(c.qkv.data() + t * c.stride + h * s.dim,
                 Expect(row + h * s.dim, s.norm ? c.qw.data() : nullptr, cos_sin, s, 1e-3), "q");
    }
    for (int i = s.q_heads * s.dim; i < c.stride; ++i) EXPECT_EQ(c.qkv[t * c.stride + i], row[i]) << "k, v are inputs";
    if (c.slots[t] < 0) continue;
    for (int h = 0; h < s.kv_heads; ++h) {
      const int64_t at =
          ((c.slots[t] / s.block_size * s.kv_heads + h) * s.block_size + c.slots[t] % s.block_size) * s.dim;
      ExpectHead(c.kc.data() + at,
                 Expect(row + (s.q_heads + h) * s.dim, s.norm ? c.kw.data() : nullptr, cos_sin, s, 1e-3), "k");
      for (int d = 0; d < s.dim; ++d) EXPECT_EQ(c.vc[at + d], row[(s.q_heads + s.kv_heads + h) * s.dim + d]);
    }
  }
}

TEST_P(RopeKvWrite, NormsRotatesAndWritesEachToken) {
  const auto fn = Get<RopeKvWriteFn>(OpId::kRopeKvWrite, kFeatureInterleavedRope);
  for (const bool norm : {false, true}) {
    for (const bool interleaved : {false, true}) {
      for (const int rotary : {12, 20}) {
        Shape s;
        s.norm = norm;
        s.interleaved = interleaved;
        s.rotary = rotary;
        Case c(s);
        fn(c.Params(), {nullptr, 2});
        Check(c);
      }
    }
  }
}

TEST_P(RopeKvWrite, TouchesNoOtherSlot) {
  const auto fn = Get<RopeKvWriteFn>(OpId::kRopeKvWrite);
  Case c(Shape{});
  fn(c.Params(), {});
  int untouched = 0;
  for (size_t i = 0; i < c.kc.size(); i += c.s.dim) untouched += c.kc[i] == -7.0f && c.vc[i] == -7.0f;
  EXPECT_EQ(untouched, (c.s.blocks * c.s.block_size - 6) * c.s.kv_heads);
}

TEST_P(RopeKvWrite, ASlotPastTheCacheIsRefused) {
  const auto fn = Get<RopeKvWriteFn>(OpId::kRopeKvWrite);
  Case c(Shape{});
  c.slots[4] = c.s.blocks * c.s.block_size;
  EXPECT_THROW(fn(c.Params(), {}), InternalError);
}

FASTLLM_INSTANTIATE_ARMS(RopeKvWrite);

}  // namespace
}  // namespace fastllm::ops
