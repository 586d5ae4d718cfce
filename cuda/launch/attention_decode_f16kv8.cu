// Instances of the decode kernel in f16 over a cache of fp8; see instances/manifest.py.
#include "cuda/launch/attention_decode.cuh"

namespace fastllm::cuda {

template void LaunchDecodeFp8<__half, 64>(const ops::PagedAttentionParams&, const AttentionShape&, cudaStream_t);
template void LaunchDecodeFp8<__half, 96>(const ops::PagedAttentionParams&, const AttentionShape&, cudaStream_t);
template void LaunchDecodeFp8<__half, 128>(const ops::PagedAttentionParams&, const AttentionShape&, cudaStream_t);
template void LaunchDecodeFp8<__half, 256>(const ops::PagedAttentionParams&, const AttentionShape&, cudaStream_t);

}  // namespace fastllm::cuda
