// The op table of the runtime: the arms of this build, and what needs libraries that the ops ring does not meet.
#pragma once

#include "ops/table/op_table.h"

namespace fastllm::runtime {

// BuiltinOps(), and on CUDA linear through cuBLASLt. Built once, thread-safe.
const ops::OpTable& RuntimeOps();

// cuda_linear.cc, in builds with FASTLLM_CUDA.
void RegisterCudaLinear(ops::OpTable& table);

}  // namespace fastllm::runtime
