#include <random>

#include "attention_case.h"

namespace fastllm::cuda_check {
namespace {

// The weights and the outputs are rounded to the type once each.
double Limit(DType t) { return t == DType::kF32 ? 2e-6 : t == DType::kF16 ? 6e-4 : 4e-3; }

void Check(Checks& c, const AttentionShapeSpec& shape, const std::vector<Sequence>& seqs) {
  AttentionCase one(shape, seqs, 100 + seqs.size() + shape.dim);
  one.Run(c);
  c.Expect(one.Label(), one.Error(), Limit(shape.dtype));
}

std::vector<Sequence> Decodes(int n, int longest, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<Sequence> out;
  for (int i = 0; i < n; ++i) out.push_back({1, 1 + static_cast<int>(rng() % longest)});
  return out;
}

std::vector<Sequence> Mixed(int n, int longest, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<Sequence> out;
  for (int i = 0; i < n; ++i) {
    const int length = 1 + static_cast<int>(rng() % longest);
    out.push_back({rng() % 2 == 0 ? 1 : 1 + static_cast<int>(rng() % length), length});
  }
  return out;
}

void CheckShape(Checks& c, const AttentionShapeSpec& s) {
  Check(c, s, {{1, 1}});
  Check(c, s, {{1, 17}, {1, 64}, {1, 65}, {1, 128}});
  Check(c, s, {{5, 5}, {1, 300}, {70, 133}, {1, 1}, {2, 90}});
  if (c.small) return;
  Check(c, s, {{1, 5000}});
  Check(c, s, Decodes(37, 700, 5));
  Check(c, s, {{600, 600}, {33, 1033}});
  Check(c, s, Mixed(23, 500, 6));
}

// Windows at and around the borders of pages, decode units (64) and column tiles (64 or 128); tiles cut into parts.
void CheckVariants(Checks& c) {
  for (const DType t : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const int dim : {64, 96, 128, 256}) {
      for (const int window : {1, 16, 17, 64, 100, 128, 129, 512}) {
        const int block_size = 16 << (window + dim / 32) % 4;
        if (c.small && (window + dim / 32) % 3 != 0) continue;
        AttentionShapeSpec s{8, 2, dim, block_size, t, window};
        Check(c, s, {{1, 300}, {5, 5}, {70, 133}, {1, 1}, {2, 700}, {130, 1000}, {1, 64}, {1, 65}});
        s.q_heads = 7;
        s.kv_heads = 1;
        Check(c, s, {{16, 3000}, {300, 300}, {1, 2000}});
      }
      if (t != DType::kF32 && (t == DType::kF16 || dim < 128)) continue;
      for (const float cap : {2.0f, 50.0f}) {
        for (const int window : {0, 100}) {
          Check(c, {8, 4, dim, 16, t, window, cap}, {{1, 300}, {5, 5}, {70, 433}, {1, 1}, {16, 3000}});
        }
      }
    }
  }
  if (!c.small) Check(c, {32, 8, 128, 16, DType::kBF16, 777}, Decodes(64, 2000, 9));
}

// The second backend: the shapes that it has, alone and mixed, decode split over the machine or not.
void CheckFlashInfer(Checks& c) {
  if (!c.Has(ops::Backend::kFlashInfer)) return;
  const std::pair<int, int> heads[] = {{8, 2}, {8, 8}, {7, 1}, {32, 8}, {24, 1}};
  for (const int dim : {64, 128, 256}) {
    for (const auto& [q_heads, kv_heads] : heads) {
      AttentionShapeSpec s{q_heads, kv_heads, dim, 16 << (q_heads + dim / 64) % 4};
      s.backend = ops::Backend::kFlashInfer;
      CheckShape(c, s);
      if (!c.small) Check(c, s, Decodes(150, 500, 8));
    }
  }
  // Steps that the selector shares out, and variants in which it must not.
  for (const int window : {0, 90}) {
    AttentionShapeSpec s{16, 1, 128, 16, DType::kBF16, window};
    s.backend = ops::Backend::kAny;
    CheckShape(c, s);
    s.q_heads = 20;
    s.kv_heads = 2;
    CheckShape(c, s);
    s.softcap = 20.0f;
    Check(c, s, {{5, 5}, {1, 300}, {70, 133}, {1, 1}, {2, 90}});
  }
}

}  // namespace

void CheckSanitized(Checks& c) {
  for (const int dim : {64, 128, 256}) {
    const int kv_heads = dim == 64 ? 2 : 1;
    for (const int window : {0, 40}) {
      // Prefill of one and of several column tiles, beside decodes; then a tile cut into parts.
      Check(c, {2 * kv_heads, kv_heads, dim, 32, DType::kBF16, window}, {{70, 200}, {1, 90}, {1, 1}, {5, 5}});
      Check(c, {2 * kv_heads, kv_heads, dim, 16, DType::kBF16, window}, {{9, 700}, {1, 400}});
    }
    if (dim > 64) Check(c, {2, 1, dim, 16, DType::kBF16, 0, 20.0f}, {{70, 200}, {1, 90}});
  }
}

void CheckAttention(Checks& c) {
  CheckVariants(c);
  CheckFlashInfer(c);
  const std::pair<int, int> heads[] = {{8, 2}, {8, 8}, {7, 1}, {14, 2}, {3, 1}};
  for (const DType t : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const int dim : {64, 96, 128, 256}) {
      for (const int block_size : {16, 32, 64, 128}) {
        for (const auto& [q_heads, kv_heads] : heads) {
          // A half of the combinations for one type, a fifth for the others.
          const int mix = block_size / 16 + q_heads + dim / 32;
          if (t == DType::kBF16 && !c.small ? mix % 2 != 0 : mix % 5 != 0) continue;
          CheckShape(c, {q_heads, kv_heads, dim, block_size, t});
        }
      }
    }
    CheckShape(c, {16, 1, 128, 16, t});  // two head tiles
    CheckShape(c, {20, 2, 128, 32, t});
    CheckShape(c, {24, 1, 64, 16, t});  // wider than the decode kernel: the prefill kernel takes it
  }
  for (const DType t : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const int dim : {64, 96, 128, 256}) {
      CheckShape(c, {8, 2, dim, 16, t, 0, 0.0f, ops::Backend::kFastllm, true});
      CheckShape(c, {7, 1, dim, 64, t, 0, 0.0f, ops::Backend::kFastllm, true});
    }
    CheckShape(c, {16, 1, 128, 32, t, 0, 0.0f, ops::Backend::kFastllm, true});
    CheckShape(c, {24, 1, 64, 16, t, 100, 0.0f, ops::Backend::kFastllm, true});
    if (t == DType::kBF16) CheckShape(c, {8, 2, 256, 16, t, 0, 30.0f, ops::Backend::kFastllm, true});
  }
  // Few prefill tiles of long sequences: their K and V are cut into parts.
  for (const DType t : {DType::kBF16, DType::kF16}) {
    for (const int dim : {64, 96, 128, 256}) {
      Check(c, {4, 2, dim, dim == 64 ? 128 : 16, t}, {{16, 5000}, {1, 200}, {70, 1300}});
      Check(c, {8, 8, dim, 32, t}, {{3, 900}, {9, 4100}, {40, 600}, {2, 3000}, {300, 2000}});
    }
  }
  if (!c.small) Check(c, {32, 8, 128, 16, DType::kBF16}, Decodes(64, 2000, 9));
}

}  // namespace fastllm::cuda_check
