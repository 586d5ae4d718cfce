// The op table of the runtime: the arms of this build, and what needs libraries that the ops ring does not meet.
#pragma once

#include "ops/table/op_table.h"

namespace fastllm::runtime {

// BuiltinOps(), and on CUDA linear through cuBLASLt. Built once, thread-safe.
const ops::OpTable& RuntimeOps();

// Frees what ops keep for a stream of the device (plans, workspaces), and gives the memory that torch holds back for
// later to the driver, so that the next engine of the process finds it. Nothing may be running on the stream.
void ReleaseStream(ops::Device device, void* stream);

// cuda_linear.cc, in builds with FASTLLM_CUDA.
void RegisterCudaLinear(ops::OpTable& table);
void RegisterCudaFp8Linear(ops::OpTable& table);  // cuda_fp8_linear.cc
void ReleaseCudaStream(void* stream);

}  // namespace fastllm::runtime
