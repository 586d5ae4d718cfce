// Instances of cuda/gemm/fp8_stream.cuh as candidates of fp8_bench, and its random data.
#include "bench/ops/gemm/fp8_product.h"
#include "cuda/launch/fp8_stream.cuh"

namespace fastllm::gemm_bench {
namespace {

__global__ void FillKernel(__nv_fp8_storage_t* out, size_t count, uint64_t seed, float scale) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    uint64_t r = i + seed * 0x5851f42d4c957f2dull + 0x9e3779b97f4a7c15ull;
    r = (r ^ (r >> 30)) * 0xbf58476d1ce4e5b9ull;
    r = (r ^ (r >> 27)) * 0x94d049bb133111ebull;
    r ^= r >> 31;
    float sum = -2.0f;  // of four uniform numbers, less their mean; deviation sqrt(1/3)
    for (int part = 0; part < 4; ++part) sum += static_cast<float>((r >> (16 * part)) & 0xffff) * (1.0f / 65536.0f);
    out[i] = __nv_cvt_float_to_fp8(sum * 1.7320508f * scale, __NV_SATFINITE, __NV_E4M3);
  }
}

template <int kTokens, int kBlocks>
void Add(Fp8Variants& all, int least) {
  using Shape = cuda::Fp8StreamShape<kTokens, kBlocks>;
  for (const int splits : {1, 2, 3, 4}) {
    const std::string name =
        "stream x" + std::to_string(kTokens) + " b" + std::to_string(kBlocks) + " s" + std::to_string(splits);
    all.push_back({name, false, least, kTokens, [=](const ops::DenseFp8LinearParams& p, cudaStream_t stream) {
                     const auto& l = p.linear;
                     if (l.k < splits * 4 * cuda::kFp8Depth || l.n * splits > 8 * 6144) return false;
                     cuda::LaunchFp8Stream<Shape>(l, ops::DType::kBF16, splits, l.num_rows > 8, stream, "stream");
                     return true;
                   }});
  }
}

}  // namespace

void FillFp8(void* out, size_t count, uint64_t seed, float scale, cudaStream_t stream) {
  FillKernel<<<1024, 256, 0, stream>>>(static_cast<__nv_fp8_storage_t*>(out), count, seed, scale);
}

void AddFp8Stream(Fp8Variants& all) {
  Add<8, 1>(all, 1);
  Add<8, 2>(all, 1);
  Add<16, 1>(all, 9);
  Add<16, 2>(all, 9);
  Add<32, 1>(all, 17);
  Add<32, 2>(all, 17);
  Add<64, 1>(all, 33);
  Add<64, 2>(all, 33);
  Add<128, 1>(all, 65);
}

}  // namespace fastllm::gemm_bench
