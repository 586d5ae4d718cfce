// FlashInfer's decode kernel for head_dim 64; see instances/manifest.py. Empty without FASTLLM_FLASHINFER.
#ifdef FASTLLM_FLASHINFER
#include "cuda/launch/flashinfer_decode.cuh"

namespace fastllm::cuda {

template cudaError_t RunFlashInferDecode<64>(const FlashInferBatch&, const FlashInferDecode&, cudaStream_t);

}  // namespace fastllm::cuda
#endif
