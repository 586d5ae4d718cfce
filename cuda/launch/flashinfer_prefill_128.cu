// FlashInfer's prefill kernel for head_dim 128; see instances/manifest.py. Empty without FASTLLM_FLASHINFER.
#ifdef FASTLLM_FLASHINFER
#include "cuda/launch/flashinfer_prefill.cuh"

namespace fastllm::cuda {

template cudaError_t RunFlashInferPrefill<128>(const FlashInferBatch&, const FlashInferPrefill&, cudaStream_t);

}  // namespace fastllm::cuda
#endif
