# Imports libtorch from the torch package of the interpreter, without running its CMake config (which wants the
# whole CUDA toolkit of the torch build) and without importing the Python module.
# Targets: libtorch::c10 (headers and c10 alone: tensors, no operators), libtorch::torch (that and torch_cpu), and with
# COMPONENTS CUDA libtorch::cuda (c10_cuda, torch_cuda and
# the cuBLASLt that torch brings along), so that a CPU build against a CUDA torch does not pull them in.
# Sets Libtorch_LIB_DIR, and Libtorch_CUDA_LIB_DIR where cuBLASLt was found in a package of its own.
execute_process(
  COMMAND ${Python3_EXECUTABLE} -c "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s else '')"
  OUTPUT_VARIABLE Libtorch_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE)
find_path(Libtorch_INCLUDE_DIR ATen/ATen.h HINTS ${Libtorch_ROOT}/include NO_DEFAULT_PATH)
find_library(Libtorch_C10 c10 HINTS ${Libtorch_ROOT}/lib NO_DEFAULT_PATH)
find_library(Libtorch_CPU torch_cpu HINTS ${Libtorch_ROOT}/lib NO_DEFAULT_PATH)
if("CUDA" IN_LIST Libtorch_FIND_COMPONENTS)
  find_library(Libtorch_C10_CUDA c10_cuda HINTS ${Libtorch_ROOT}/lib NO_DEFAULT_PATH)
  find_library(Libtorch_CUDA torch_cuda HINTS ${Libtorch_ROOT}/lib NO_DEFAULT_PATH)
  # The wheels of NVIDIA beside torch: nvidia/cu13/{include,lib}, or for CUDA 12 a folder for each library. They hold
  # no unversioned names. Otherwise the toolkit's.
  file(GLOB _nvidia_include ${Libtorch_ROOT}/../nvidia/*/include)
  file(GLOB _nvidia_lib ${Libtorch_ROOT}/../nvidia/*/lib)
  find_path(Libtorch_CUBLASLT_INCLUDE_DIR cublasLt.h HINTS ${_nvidia_include} ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  find_library(Libtorch_CUBLASLT NAMES libcublasLt.so.13 libcublasLt.so.12 cublasLt HINTS ${_nvidia_lib})
  if(Libtorch_C10_CUDA AND Libtorch_CUDA AND Libtorch_CUBLASLT AND Libtorch_CUBLASLT_INCLUDE_DIR)
    set(Libtorch_CUDA_FOUND TRUE)
  endif()
endif()
include(FindPackageHandleStandardArgs)
string(CONCAT _reason "the Python package torch is looked for in ${Python3_EXECUTABLE}. The component CUDA also needs "
  "libtorch_cuda, libc10_cuda, and cuBLASLt with its headers (package nvidia-cublas)")
find_package_handle_standard_args(Libtorch REQUIRED_VARS Libtorch_INCLUDE_DIR Libtorch_C10 Libtorch_CPU
  HANDLE_COMPONENTS REASON_FAILURE_MESSAGE "${_reason}")
if(Libtorch_FOUND AND NOT TARGET libtorch::c10)
  get_filename_component(Libtorch_LIB_DIR ${Libtorch_CPU} DIRECTORY)
  add_library(libtorch::c10 INTERFACE IMPORTED)
  # -isystem: torch's headers are not held to our warnings.
  set_target_properties(libtorch::c10 PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${Libtorch_INCLUDE_DIR}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${Libtorch_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "${Libtorch_C10}"
    INTERFACE_COMPILE_DEFINITIONS "_GLIBCXX_USE_CXX11_ABI=1")
  add_library(libtorch::torch INTERFACE IMPORTED)
  set_target_properties(libtorch::torch PROPERTIES INTERFACE_LINK_LIBRARIES "${Libtorch_CPU};libtorch::c10")
  if(Libtorch_CUDA_FOUND)
    set(_cuda_include ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} ${_nvidia_include} ${Libtorch_CUBLASLT_INCLUDE_DIR})
    get_filename_component(_cublas_lib_dir ${Libtorch_CUBLASLT} DIRECTORY)
    if(_cublas_lib_dir IN_LIST _nvidia_lib)
      set(Libtorch_CUDA_LIB_DIR ${_cublas_lib_dir})
    endif()
    add_library(libtorch::cuda INTERFACE IMPORTED)
    set_target_properties(libtorch::cuda PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${_cuda_include}"
      INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${_cuda_include}")
    # torch_cuda registers its kernels when it is loaded, so it must be loaded though few of its symbols are named.
    target_link_libraries(libtorch::cuda INTERFACE libtorch::torch
      -Wl,--push-state,--no-as-needed ${Libtorch_CUDA} ${Libtorch_C10_CUDA} -Wl,--pop-state ${Libtorch_CUBLASLT})
    # Their own dependencies lie in a dozen wheels that only the machine with the GPU needs to have.
    target_link_options(libtorch::cuda INTERFACE -Wl,--allow-shlib-undefined)
  endif()
endif()
