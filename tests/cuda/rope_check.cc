#include <cmath>

#include "ops/contract/kv_cache.h"
#include "ops/contract/rope.h"
#include "ops/contract/rope_kv_write.h"
#include "support.h"

namespace fastllm::cuda_check {
namespace {

struct Shape {
  int tokens = 9, q_heads = 6, kv_heads = 2, dim = 128, rotary = 128, block_size = 16;
  int pad = 0;  // elements between the rows of q, k and v
  bool norm = false, interleaved = false;

  int stride() const { return (q_heads + 2 * kv_heads) * dim + pad; }
  std::string Label(const char* op, DType t) const {
    return std::string(op) + " " + Name(t) + " heads " + std::to_string(q_heads) + "/" + std::to_string(kv_heads) +
           " dim " + std::to_string(dim) + " rotary " + std::to_string(rotary) + " tokens " + std::to_string(tokens) +
           (norm ? " norm" : "") + (interleaved ? " interleaved" : "") + (pad > 0 ? " padded" : "");
  }
};

// One head, norm and rotation in float64.
void Reference(const float* x, const float* weight, const float* cos_sin, const Shape& s, double* out) {
  double scale = 1.0;
  if (weight != nullptr) {
    double sum = 0.0;
    for (int d = 0; d < s.dim; ++d) sum += double{x[d]} * x[d];
    scale = 1.0 / std::sqrt(sum / s.dim + 1e-6);
  }
  for (int d = 0; d < s.dim; ++d) out[d] = x[d] * scale * (weight != nullptr ? weight[d] : 1.0);
  const int half = s.rotary / 2;
  for (int i = 0; i < half; ++i) {
    double& a = s.interleaved ? out[2 * i] : out[i];
    double& b = s.interleaved ? out[2 * i + 1] : out[i + half];
    const double va = a, vb = b;
    a = va * cos_sin[i] - vb * cos_sin[half + i];
    b = vb * cos_sin[i] + va * cos_sin[half + i];
  }
}

struct Data {
  Shape s;
  DType t;
  std::vector<float> qkv, table, q_weight, k_weight;
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
  int blocks = 0;

  Data(const Shape& shape, DType type) : s(shape), t(type) {
    qkv = Normal(static_cast<size_t>(s.tokens) * s.stride(), 21);
    table = Normal(static_cast<size_t>(512) * s.rotary, 22);
    q_weight = Normal(s.dim, 23);
    k_weight = Normal(s.dim, 24);
    for (auto* v : {&qkv, &q_weight, &k_weight}) Round(*v, t);
    blocks = s.tokens * 2 / s.block_size + 2;
    for (int i = 0; i < s.tokens; ++i) {
      positions.push_back((i * 37 + 5) % 512);
      // A permutation of every other slot; one token in five is padding, one slot lies past the cache.
      slots.push_back(i % 5 == 3 ? -1 : i == 5 ? int64_t{blocks} * s.block_size : 2 * ((i * 7) % s.tokens));
    }
    if (s.tokens % 7 == 0) {
      for (int i = 0; i < s.tokens; ++i) slots[i] = slots[i] < 0 ? -1 : 2 * i;
    }
  }
  size_t CacheSize() const { return static_cast<size_t>(blocks) * s.kv_heads * s.block_size * s.dim; }
  bool Written(int token) const { return slots[token] >= 0 && slots[token] < int64_t{blocks} * s.block_size; }
  size_t CacheAt(int token, int head) const {
    return ((slots[token] / s.block_size * s.kv_heads + head) * s.block_size + slots[token] % s.block_size) * s.dim;
  }
};

// The row of q, k and v after the op, and the caches; where k_in_place is false k stays as it was.
void Expected(const Data& d, bool norm, bool k_in_place, std::vector<double>& qkv, std::vector<double>& kc,
              std::vector<double>& vc) {
  const Shape& s = d.s;
  qkv.assign(d.qkv.begin(), d.qkv.end());
  kc.assign(d.CacheSize(), 0.25);
  vc = kc;
  for (int t = 0; t < s.tokens; ++t) {
    const float* row = d.qkv.data() + static_cast<size_t>(t) * s.stride();
    const float* cos_sin = d.table.data() + static_cast<size_t>(d.positions[t]) * s.rotary;
    for (int h = 0; h < s.q_heads + s.kv_heads; ++h) {
      std::vector<double> out(s.dim);
      const bool is_k = h >= s.q_heads;
      const float* weight = norm ? (is_k ? d.k_weight.data() : d.q_weight.data()) : nullptr;
      Reference(row + h * s.dim, weight, cos_sin, s, out.data());
      if (!is_k || k_in_place) {
        std::copy(out.begin(), out.end(), qkv.begin() + static_cast<size_t>(t) * s.stride() + h * s.dim);
      }
      if (is_k && d.Written(t)) std::copy(out.begin(), out.end(), kc.begin() + d.CacheAt(t, h - s.q_heads));
    }
    for (int h = 0; h < s.kv_heads && d.Written(t); ++h) {
      const float* v = row + (s.q_heads + s.kv_heads + h) * s.dim;
      std::copy(v, v + s.dim, vc.begin() + d.CacheAt(t, h));
    }
  }
}

// The cache after the op, of 8 bits: what it holds of the rows that are expected in it, and the bytes that were there.
void ExpectFp8(Checks& c, const std::string& label, const Buffer& cache, std::vector<double> want, float scale,
               double limit) {
  std::vector<float> rounded(want.size());
  for (size_t i = 0; i < want.size(); ++i) rounded[i] = static_cast<float>(want[i]) * (1.0f / scale);
  Round(rounded, DType::kF8E4M3);
  std::copy(rounded.begin(), rounded.end(), want.begin());
  c.Expect(label, RelativeError(DownloadAs(cache.get(), want.size(), DType::kF8E4M3), want), limit);
}

void CheckFused(Checks& c, const Data& d) {
  const Shape& s = d.s;
  std::vector<double> want_qkv, want_k, want_v;
  Expected(d, s.norm, false, want_qkv, want_k, want_v);
  const int64_t size = ops::DTypeSize(d.t);
  const std::vector<float> fill(d.CacheSize(), 0.25f);
  const Buffer qkv = UploadAs(d.qkv, d.t), kc = UploadAs(fill, d.t), vc = UploadAs(fill, d.t), table = Upload(d.table),
               positions = Upload(d.positions), slots = Upload(d.slots), qw = UploadAs(d.q_weight, d.t),
               kw = UploadAs(d.k_weight, d.t);
  ops::RopeKvWriteParams p;
  p.cache = {kc.get(), vc.get(), d.blocks, s.kv_heads, s.block_size, s.dim};
  p.q = qkv.get();
  p.k = qkv.as<char>() + s.q_heads * s.dim * size;
  p.v = qkv.as<char>() + (s.q_heads + s.kv_heads) * s.dim * size;
  p.q_norm_weight = s.norm ? qw.get() : nullptr;
  p.k_norm_weight = s.norm ? kw.get() : nullptr;
  p.cos_sin = table.as<float>();
  p.positions = positions.as<int32_t>();
  p.slot_mapping = slots.as<int64_t>();
  p.q_stride = p.k_stride = p.v_stride = s.stride();
  p.num_tokens = s.tokens;
  p.num_q_heads = s.q_heads;
  p.rotary_dim = s.rotary;
  p.interleaved = s.interleaved;
  c.Get<ops::RopeKvWriteFn>(OpId::kRopeKvWrite, d.t, 0, ops::kFeatureInterleavedRope)(p, {});
  const std::string label = s.Label("rope_kv_write", d.t);
  c.Expect(label + " q", RelativeError(DownloadAs(qkv.get(), want_qkv.size(), d.t), want_qkv), Tolerance(d.t));
  c.Expect(label + " k", RelativeError(DownloadAs(kc.get(), want_k.size(), d.t), want_k), Tolerance(d.t));
  c.Expect(label + " v", RelativeError(DownloadAs(vc.get(), want_v.size(), d.t), want_v), 0.0);

  // Into a cache of 8 bits. 0.25 is exact with either scale. A K that the device rounds to d.t first may be a step of
  // its code away from the one rounded at once: 0.015 of the whole on average, 0.051 at most in 400 draws of these
  // sizes.
  const Buffer q8 = UploadAs(d.qkv, d.t);
  const std::vector<float> of_k(d.CacheSize(), 0.25f / 0.5f), of_v(d.CacheSize(), 0.25f / 2.0f);
  const Buffer k8 = UploadAs(of_k, DType::kF8E4M3), v8 = UploadAs(of_v, DType::kF8E4M3);
  p.cache = {k8.get(), v8.get(), d.blocks, s.kv_heads, s.block_size, s.dim, DType::kF8E4M3, 0.5f, 2.0f};
  p.q = q8.get();
  p.k = q8.as<char>() + s.q_heads * s.dim * size;
  p.v = q8.as<char>() + (s.q_heads + s.kv_heads) * s.dim * size;
  c.Get<ops::RopeKvWriteFn>(OpId::kRopeKvWrite, d.t, 0, ops::kFeatureInterleavedRope)(p, {});
  c.Expect(label + " fp8 q", RelativeError(DownloadAs(q8.get(), want_qkv.size(), d.t), want_qkv), Tolerance(d.t));
  ExpectFp8(c, label + " fp8 k", k8, want_k, 0.5f, d.t == DType::kF32 ? 5e-3 : 6e-2);
  ExpectFp8(c, label + " fp8 v", v8, want_v, 2.0f, 0.0);
}

void CheckSeparate(Checks& c, const Data& d) {
  const Shape& s = d.s;
  std::vector<double> want_qkv, unused_k, unused_v;
  Expected(d, false, true, want_qkv, unused_k, unused_v);
  const int64_t size = ops::DTypeSize(d.t);
  const Buffer qkv = UploadAs(d.qkv, d.t), table = Upload(d.table), positions = Upload(d.positions);
  char* k = qkv.as<char>() + s.q_heads * s.dim * size;
  c.Get<ops::RopeFn>(OpId::kRope, d.t, 0, ops::kFeatureInterleavedRope)(
      {qkv.get(), k, table.as<float>(), positions.as<int32_t>(), s.stride(), s.stride(), s.tokens, s.q_heads,
       s.kv_heads, s.dim, s.rotary, s.interleaved},
      {});
  c.Expect(s.Label("rope", d.t), RelativeError(DownloadAs(qkv.get(), want_qkv.size(), d.t), want_qkv), Tolerance(d.t));

  const Buffer plain = UploadAs(d.qkv, d.t), slots = Upload(d.slots);
  const std::vector<float> fill(d.CacheSize(), 0.25f);
  const Buffer kc = UploadAs(fill, d.t), vc = UploadAs(fill, d.t);
  std::vector<double> want_k(fill.begin(), fill.end()), want_v = want_k;
  for (int t = 0; t < s.tokens; ++t) {
    for (int h = 0; h < s.kv_heads && d.Written(t); ++h) {
      const float* row = d.qkv.data() + static_cast<size_t>(t) * s.stride();
      for (int e = 0; e < s.dim; ++e) {
        want_k[d.CacheAt(t, h) + e] = row[(s.q_heads + h) * s.dim + e];
        want_v[d.CacheAt(t, h) + e] = row[(s.q_heads + s.kv_heads + h) * s.dim + e];
      }
    }
  }
  char* base = plain.as<char>();
  c.Get<ops::KvWriteFn>(OpId::kKvWrite, d.t)({{kc.get(), vc.get(), d.blocks, s.kv_heads, s.block_size, s.dim},
                                              base + s.q_heads * s.dim * size,
                                              base + (s.q_heads + s.kv_heads) * s.dim * size,
                                              slots.as<int64_t>(),
                                              s.stride(),
                                              s.stride(),
                                              s.tokens},
                                             {});
  c.Expect(s.Label("kv_write k", d.t), RelativeError(DownloadAs(kc.get(), want_k.size(), d.t), want_k), 0.0);
  c.Expect(s.Label("kv_write v", d.t), RelativeError(DownloadAs(vc.get(), want_v.size(), d.t), want_v), 0.0);

  const std::vector<float> of_k(d.CacheSize(), 0.25f / 0.5f), of_v(d.CacheSize(), 0.25f / 2.0f);
  const Buffer k8 = UploadAs(of_k, DType::kF8E4M3), v8 = UploadAs(of_v, DType::kF8E4M3);
  c.Get<ops::KvWriteFn>(OpId::kKvWrite, d.t)(
      {{k8.get(), v8.get(), d.blocks, s.kv_heads, s.block_size, s.dim, DType::kF8E4M3, 0.5f, 2.0f},
       base + s.q_heads * s.dim * size,
       base + (s.q_heads + s.kv_heads) * s.dim * size,
       slots.as<int64_t>(),
       s.stride(),
       s.stride(),
       s.tokens},
      {});
  ExpectFp8(c, s.Label("kv_write fp8 k", d.t), k8, want_k, 0.5f, 0.0);
  ExpectFp8(c, s.Label("kv_write fp8 v", d.t), v8, want_v, 2.0f, 0.0);
}

}  // namespace

void CheckRope(Checks& c) {
  for (const DType t : kAllTypes) {
    for (const int dim : {64, 96, 128, 256, 80, 20}) {
      for (const int variant : {0, 1, 2, 3, 4, 5}) {
        Shape s;
        s.dim = s.rotary = dim;
        s.norm = variant & 1;
        s.interleaved = variant & 2;
        if (variant >= 4) s.rotary = dim / 4 * 2;
        s.pad = variant == 5 ? 3 : 0;
        s.block_size = variant < 2 ? 16 : 64;
        s.tokens = variant == 1 && !c.small ? 301 : 9;
        CheckFused(c, Data(s, t));
        CheckSeparate(c, Data(s, t));
      }
    }
  }
}

}  // namespace fastllm::cuda_check
