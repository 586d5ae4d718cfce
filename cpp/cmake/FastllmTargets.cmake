# fastllm_library(<name> ROOMS <dir>... [LINK <target>...])
#   A static library of every .cc directly in the given rooms (relative to the current folder).
# fastllm_test(<name> SOURCES <file>... [LINK <target>...])
#   A GoogleTest program; each of its tests is a ctest of its own, named <name>:<suite>.<test>.
# fastllm_precompile(<name> <header>...)
#   Parses these headers, which most files of the target include, once.
# The first two carry the project's warnings, which are errors, and the chosen sanitizer.

add_library(fastllm_flags INTERFACE)
target_compile_options(fastllm_flags INTERFACE -Wall -Wextra -Werror -Wno-error=maybe-uninitialized)
target_include_directories(fastllm_flags INTERFACE
  ${CMAKE_SOURCE_DIR}/cpp/include ${CMAKE_SOURCE_DIR}/cpp ${CMAKE_BINARY_DIR}/generated)
if(FASTLLM_SANITIZE)
  target_compile_options(fastllm_flags INTERFACE -fsanitize=${FASTLLM_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(fastllm_flags INTERFACE -fsanitize=${FASTLLM_SANITIZE})
  target_compile_definitions(fastllm_flags INTERFACE FASTLLM_SANITIZED=1)
endif()

function(fastllm_library name)
  cmake_parse_arguments(A "" "" "ROOMS;LINK" ${ARGN})
  set(sources)
  foreach(room IN LISTS A_ROOMS)
    file(GLOB found CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${room}/*.cc)
    list(APPEND sources ${found})
  endforeach()
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC ${A_LINK} PRIVATE $<BUILD_INTERFACE:fastllm_flags>)
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/cpp/include> $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/cpp>)
endfunction()

function(fastllm_precompile name)
  if(FASTLLM_PRECOMPILE)
    target_precompile_headers(${name} PRIVATE ${ARGN})
    # What ccache asks for before it keeps objects that were made with precompiled headers; else they are only compiled.
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(${name} PRIVATE -fpch-preprocess)
    endif()
  endif()
endfunction()

function(fastllm_test name)
  cmake_parse_arguments(A "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  # The tests' own code is not worth an optimiser, which takes most of the time over it under a sanitizer.
  if(FASTLLM_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)
  else()
    target_compile_options(${name} PRIVATE -O1)
  endif()
  target_link_libraries(${name} PRIVATE ${A_LINK} GTest::gtest GTest::gtest_main fastllm_flags)
  # Found when ctest runs, not at build time: a program that cannot start fails the tests, not the build.
  gtest_discover_tests(${name} TEST_PREFIX "${name}:" DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT 600)
endfunction()
