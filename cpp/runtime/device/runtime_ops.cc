#include "runtime/device/runtime_ops.h"

namespace fastllm::runtime {

const ops::OpTable& RuntimeOps() {
  static const ops::OpTable table = [] {
    ops::OpTable t = ops::BuiltinOps();
#ifdef FASTLLM_CUDA
    RegisterCudaLinear(t);
#endif
    return t;
  }();
  return table;
}

}  // namespace fastllm::runtime
