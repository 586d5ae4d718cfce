#include "bench/ops/gemm/variants.h"

namespace fastllm::gemm_bench {

void AddOwnFew(Variants& all);
void AddOwnMany(Variants& all);
void AddOwnGated(Variants& all);
#ifdef FASTLLM_GEMM_BENCH_CUTLASS
void AddCutlassFew32(Variants& all);
void AddCutlassFew64(Variants& all);
void AddCutlassFew64C(Variants& all);
void AddCutlassFew128(Variants& all);
void AddCutlassFew128W(Variants& all);
void AddCutlassFew256(Variants& all);
void AddCutlassMany1(Variants& all);
void AddCutlassMany2(Variants& all);
void AddCutlassMany3(Variants& all);
void AddCutlassMany4(Variants& all);
void AddCutlassMany6(Variants& all);
#endif

void AddVariants(Variants& all) {
  AddOwnFew(all);
  AddOwnMany(all);
  AddOwnGated(all);
#ifdef FASTLLM_GEMM_BENCH_CUTLASS
  AddCutlassFew32(all);
  AddCutlassFew64(all);
  AddCutlassFew64C(all);
  AddCutlassFew128(all);
  AddCutlassFew128W(all);
  AddCutlassFew256(all);
  AddCutlassMany1(all);
  AddCutlassMany2(all);
  AddCutlassMany3(all);
  AddCutlassMany4(all);
  AddCutlassMany6(all);
#endif
}

}  // namespace fastllm::gemm_bench
