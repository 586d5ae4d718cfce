#include "cuda/launch/tensor_map.h"

#include <cuda_runtime_api.h>

#include <string>

#include "core/base/check.h"

namespace fastllm::cuda {
namespace {

using EncodeFn = decltype(&cuTensorMapEncodeTiled);

// The driver's function by name, so that nothing links the driver's library.
EncodeFn Encode() {
  static const EncodeFn fn = [] {
    void* p = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const cudaError_t e =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault, &found);
    FASTLLM_CHECK(e == cudaSuccess && found == cudaDriverEntryPointSuccess,
                  std::string("cuTensorMapEncodeTiled: not in this driver: ") + cudaGetErrorString(e));
    return reinterpret_cast<EncodeFn>(p);
  }();
  return fn;
}

}  // namespace

CUtensorMap MakeRowBoxes(const RowBoxes& b, const char* op) {
  const auto row_bytes = static_cast<cuuint64_t>(b.row_elements) * 2;
  const auto atom = static_cast<cuuint32_t>(b.atom);
  const auto atoms = static_cast<cuuint32_t>(b.row_elements / b.atom);
  const cuuint64_t sizes[4] = {atom, 8, atoms, static_cast<cuuint64_t>(b.rows / 8)};
  const cuuint64_t strides[3] = {row_bytes, cuuint64_t{atom} * 2, row_bytes * 8};
  const cuuint32_t box[4] = {atom, 8, atoms, static_cast<cuuint32_t>(b.box_rows / 8)};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult r =
      Encode()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, const_cast<void*>(b.data), sizes, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, b.atom == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  FASTLLM_CHECK(r == CUDA_SUCCESS, std::string(op) + ": no tensor map for " + std::to_string(b.rows) + " rows of " +
                                       std::to_string(b.row_elements) + " elements in boxes of " +
                                       std::to_string(b.box_rows) + " rows: driver error " +
                                       std::to_string(static_cast<int>(r)));
  return map;
}

CUtensorMap MakeMatrixBoxes(const MatrixBoxes& b, const char* op) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(b.columns), static_cast<cuuint64_t>(b.rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(b.columns) * 2};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(b.box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  CUtensorMap map;
  const CUresult r = Encode()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, const_cast<void*>(b.data), sizes, strides, box,
                              steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  FASTLLM_CHECK(r == CUDA_SUCCESS, std::string(op) + ": no tensor map for a matrix of " + std::to_string(b.rows) +
                                       " x " + std::to_string(b.columns) + " in boxes of " +
                                       std::to_string(b.box_rows) + " rows: driver error " +
                                       std::to_string(static_cast<int>(r)));
  return map;
}

CUtensorMap MakeRowPairBoxes(const RowPairBoxes& b, const char* op) {
  const auto row_bytes = static_cast<cuuint64_t>(b.columns) * 2;
  const auto rows = static_cast<cuuint64_t>(b.rows);
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(b.columns), 8, 2, b.gated ? rows / 8 : rows / 16};
  const cuuint64_t strides[3] = {row_bytes, b.gated ? row_bytes * rows : row_bytes * 8, row_bytes * (b.gated ? 8 : 16)};
  const cuuint32_t box[4] = {64, 8, 2, static_cast<cuuint32_t>(b.box_rows / 16)};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult r = Encode()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, const_cast<void*>(b.data), sizes, strides, box,
                              steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  FASTLLM_CHECK(r == CUDA_SUCCESS, std::string(op) + ": no tensor map for a weight of " + std::to_string(b.rows) +
                                       " x " + std::to_string(b.columns) + " in boxes of " +
                                       std::to_string(b.box_rows) + " rows: driver error " +
                                       std::to_string(static_cast<int>(r)));
  return map;
}

}  // namespace fastllm::cuda
