# Finds the headers that pip's package flashinfer-python brings: FlashInfer, the CUTLASS and the CCCL that it is built
# with. Nothing of the package is imported or linked. FlashInfer_ROOT may name a folder like its flashinfer/data.
# Target: flashinfer::headers (interface; see cuda/CMakeLists.txt for why not system includes). CURAND's headers, which CUTLASS includes, are those of the
# toolkit or of pip's nvidia-curand.
if(NOT FlashInfer_ROOT)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c "import importlib.util as u, os; s = u.find_spec('flashinfer'); print(os.path.join(list(s.submodule_search_locations)[0], 'data') if s else '')"
    OUTPUT_VARIABLE FlashInfer_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
execute_process(
  COMMAND ${Python3_EXECUTABLE} -c "import importlib.util as u; s = u.find_spec('nvidia'); print(';'.join(p + '/cu13/include' for p in s.submodule_search_locations) if s else '')"
  OUTPUT_VARIABLE _nvidia_includes OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
find_path(FlashInfer_INCLUDE_DIR flashinfer/attention/prefill.cuh PATHS ${FlashInfer_ROOT}/include NO_DEFAULT_PATH)
find_path(FlashInfer_CUTLASS_DIR cutlass/cutlass.h PATHS ${FlashInfer_ROOT}/cutlass/include NO_DEFAULT_PATH)
find_path(FlashInfer_CCCL_DIR cub/cub.cuh PATHS ${FlashInfer_ROOT}/cccl/cub NO_DEFAULT_PATH)
find_path(FlashInfer_CURAND_DIR curand_kernel.h PATHS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} ${_nvidia_includes})
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(FlashInfer
  REQUIRED_VARS FlashInfer_INCLUDE_DIR FlashInfer_CUTLASS_DIR FlashInfer_CCCL_DIR FlashInfer_CURAND_DIR)
if(FlashInfer_FOUND AND NOT TARGET flashinfer::headers)
  add_library(flashinfer::headers INTERFACE IMPORTED)
  # CCCL first: the toolkit's own is too old for FlashInfer, and nvcc puts it behind what is named here.
  set(_flashinfer_dirs ${FlashInfer_CCCL_DIR} ${FlashInfer_ROOT}/cccl/libcudacxx/include ${FlashInfer_ROOT}/cccl/thrust
    ${FlashInfer_INCLUDE_DIR} ${FlashInfer_CUTLASS_DIR} ${FlashInfer_ROOT}/cutlass/tools/util/include
    ${FlashInfer_CURAND_DIR})
  set_target_properties(flashinfer::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${_flashinfer_dirs}")
endif()
