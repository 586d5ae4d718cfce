// Hopper's barriers in shared memory, bulk tensor copies, named barriers and register hand-over, one function each
// (sm_90a only). Addresses are shared-memory addresses (SharedAddress).
#pragma once

#include <cuda.h>

#include <cstdint>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

namespace fastllm::cuda {

// A barrier's phase ends after `arrivals` arrivals and when all bytes announced for it have been copied.
__device__ __forceinline__ void InitBarrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After the last InitBarrier, before the barrier across the block that publishes them.
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
__device__ __forceinline__ void ArriveAt(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
// At a barrier of any block of the cluster (SharedOf in cluster.cuh). Orders what this block has read, not what it
// wrote.
__device__ __forceinline__ void ArriveInCluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
// Arrives and announces `bytes` of copies that the phase waits for too.
__device__ __forceinline__ void ArriveExpecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}
// Until the phase of that parity has ended; the one before the first counts as ended, with parity 1.
__device__ __forceinline__ void WaitFor(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
  } while (done == 0);
}

// Named barriers 1 to 15 (0 is __syncthreads): `threads` in all sync or arrive.
__device__ __forceinline__ void SyncNamed(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void ArriveNamed(uint32_t id, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// Copies the box at (c0, .., c3) of the mapped tensor to shared memory; coordinates outside it give zeros. Counts the
// bytes of the whole box on `barrier`. One thread.
__device__ __forceinline__ void CopyBox4(uint32_t to, const CUtensorMap* map, uint32_t barrier, int32_t c0, int32_t c1,
                                         int32_t c2, int32_t c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];\n" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
__device__ __forceinline__ uint64_t NormalPolicy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint64_t EvictLastPolicy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}
// As CopyBox4, of a matrix; policy: how long it is to stay in the L2.
__device__ __forceinline__ void CopyBox2(uint32_t to, const CUtensorMap* map, uint32_t barrier, int32_t c0, int32_t c1,
                                         uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5;\n" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "l"(policy)
      : "memory");
}
// As CopyBox4 with a policy; with a `mask` of blocks of the cluster, to the same place of each of them, counting on the
// barrier that each has there.
__device__ __forceinline__ void CopyBox4(uint32_t to, const CUtensorMap* map, uint32_t barrier, int32_t c0, int32_t c1,
                                         int32_t c2, int32_t c3, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;\n" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void CopyBox4To(uint16_t mask, uint32_t to, const CUtensorMap* map, uint32_t barrier,
                                           int32_t c0, int32_t c1, int32_t c2, int32_t c3, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %8, %7;\n" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy), "h"(mask)
      : "memory");
}
__device__ __forceinline__ void CopyBox2To(uint16_t mask, uint32_t to, const CUtensorMap* map, uint32_t barrier,
                                           int32_t c0, int32_t c1, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %6, %5;\n" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "l"(policy), "h"(mask)
      : "memory");
}
__device__ __forceinline__ void PrefetchMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}

// Registers per thread of the calling warpgroup from here on.
template <int kRegisters>
__device__ __forceinline__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

}  // namespace fastllm::cuda

#endif  // __CUDA_ARCH_FEAT_SM90_ALL
