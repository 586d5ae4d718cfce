// Token ids of Python.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

namespace fastllm::bindings {

// The ids of any sequence of integers, of arrays (numpy, array.array) without an object for each; errors name the place
// and the value, never dump the list. With the GIL.
std::vector<int32_t> TokenIds(pybind11::handle object);

}  // namespace fastllm::bindings
