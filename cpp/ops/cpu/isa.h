// CpuIsa: which arms of the CPU ops a process may use.
#pragma once

#include <cstdint>

#include "ops/table/op_table.h"

namespace fastllm::ops {

enum class CpuIsa : uint8_t {
  kPlain = 0,       // scalar C++, every architecture; the oracle of the others
  kAvx2 = 1,        // AVX2 and FMA
  kAvx512 = 2,      // AVX-512 F, BW, VL and DQ
  kAvx512Vnni = 3,  // and VNNI
  kAvx512Bf16 = 4,  // and BF16
  kAmx = 5,         // and AMX with tiles of int8 and bfloat16
};

// "plain", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx".
const char* CpuIsaName(CpuIsa isa);

// The best arm that this build holds and this processor and operating system can run (CPUID and XGETBV; for AMX the
// system is asked for the tiles, once for the process).
CpuIsa DetectCpuIsa();

// Registers the plain arm and the vector arms up to min(max_isa, DetectCpuIsa()). With a lower max_isa, tests and
// benchmarks choose an arm; RegisterCpuOps(table) is this with the best, or with the one that the environment variable
// FASTLLM_CPU_ISA names (for tests; a name that is not known throws InternalError).
void RegisterCpuOps(OpTable& table, CpuIsa max_isa);

}  // namespace fastllm::ops
