// Instances of cuda/gemm/few_stream.cuh as candidates of layer_chain.
#include "bench/ops/gemm/variant.h"
#include "cuda/launch/few.cuh"

namespace fastllm::gemm_bench {
namespace {

template <int kRows, int kTokens>
void Add(Variants& all) {
  using Shape = cuda::FewShape<kRows, kTokens>;
  for (const auto& [splits, ahead] : {std::pair{1, 0}, {2, 0}, {3, 0}, {3, 4}, {4, 0}, {5, 0}, {6, 0}, {6, 4}}) {
    const std::string name = "few w" + std::to_string(kRows) + " x" + std::to_string(kTokens) + " s" +
                             std::to_string(splits) + (ahead > 0 ? " a" + std::to_string(ahead) : "");
    all.push_back({name, false, kTokens / 2 + 1, kTokens,
                   [splits = splits, ahead = ahead](const Product& p, void*, size_t, cudaStream_t) -> Launch {
                     const int blocks = (p.n + Shape::kRows - 1) / Shape::kRows * splits;
                     if (splits > 1 && blocks > 132) return {};
                     const ops::LinearParams l{p.out, p.x, p.weight, nullptr, p.rows, p.n, p.k, false};
                     return [=](cudaStream_t s) { cuda::LaunchFew<Shape>(l, splits, ahead, s, "few"); };
                   }});
  }
}

}  // namespace

void AddFew(Variants& all) {
  Add<128, 32>(all);
  Add<64, 64>(all);
  Add<128, 64>(all);
  Add<256, 32>(all);
  Add<256, 64>(all);
  Add<128, 128>(all);
}

}  // namespace fastllm::gemm_bench
