// Token ids of Python.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

namespace fastllm::bindings {

// The ids of any sequence of integers; errors name the place and the value, never dump the list.
std::vector<int32_t> TokenIds(pybind11::handle object);

}  // namespace fastllm::bindings
