// The vector arm for avx512; compiled with that instruction set, called only where DetectCpuIsa() found it.
#include "ops/cpu/isa/simd_avx512.h"
#include "ops/cpu/isa/vector_attention.h"
#include "ops/cpu/isa/vector_kernels.h"
#include "ops/cpu/isa/vector_linear.h"
#include "ops/cpu/isa/vector_sample.h"

namespace fastllm::ops::cpu {

const Kernels kAvx512Kernels = {
    RmsNorm, Rope,     SiluMul,    Linear,    Narrow,  {Attention, AttentionSplit, AttentionJoin}, MaxOf, ExpScaled,
    ExpSum,  GatherGe, CountAbove, MomentsOf, MaskBits};

}  // namespace fastllm::ops::cpu
