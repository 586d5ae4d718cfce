# Imports libtorch from the torch package of the interpreter, without running its CMake config (which wants the
# whole CUDA toolkit of the torch build) and without importing the Python module.
# Target: libtorch::torch (headers, c10, torch_cpu; with COMPONENTS CUDA also c10_cuda and torch_cuda, so that a CPU
# build against a CUDA torch does not pull them in).
# Sets Libtorch_LIB_DIR.
execute_process(
  COMMAND ${Python3_EXECUTABLE} -c "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s else '')"
  OUTPUT_VARIABLE Libtorch_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE)
find_path(Libtorch_INCLUDE_DIR ATen/ATen.h HINTS ${Libtorch_ROOT}/include NO_DEFAULT_PATH)
find_library(Libtorch_C10 c10 HINTS ${Libtorch_ROOT}/lib NO_DEFAULT_PATH)
find_library(Libtorch_CPU torch_cpu HINTS ${Libtorch_ROOT}/lib NO_DEFAULT_PATH)
find_library(Libtorch_C10_CUDA c10_cuda HINTS ${Libtorch_ROOT}/lib NO_DEFAULT_PATH)
find_library(Libtorch_CUDA torch_cuda HINTS ${Libtorch_ROOT}/lib NO_DEFAULT_PATH)
include(FindPackageHandleStandardArgs)
if(Libtorch_C10_CUDA AND Libtorch_CUDA)
  set(Libtorch_CUDA_FOUND TRUE)
endif()
find_package_handle_standard_args(Libtorch REQUIRED_VARS Libtorch_INCLUDE_DIR Libtorch_C10 Libtorch_CPU
  HANDLE_COMPONENTS REASON_FAILURE_MESSAGE "the Python package torch is looked for in ${Python3_EXECUTABLE}")
if(Libtorch_FOUND AND NOT TARGET libtorch::torch)
  get_filename_component(Libtorch_LIB_DIR ${Libtorch_CPU} DIRECTORY)
  add_library(libtorch::torch INTERFACE IMPORTED)
  # -isystem: torch's headers are not held to our warnings.
  set_target_properties(libtorch::torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${Libtorch_INCLUDE_DIR}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${Libtorch_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "${Libtorch_CPU};${Libtorch_C10}"
    INTERFACE_COMPILE_DEFINITIONS "_GLIBCXX_USE_CXX11_ABI=1")
  if("CUDA" IN_LIST Libtorch_FIND_COMPONENTS)
    target_link_libraries(libtorch::torch INTERFACE ${Libtorch_CUDA} ${Libtorch_C10_CUDA})
  endif()
endif()
