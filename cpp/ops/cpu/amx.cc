#include "ops/cpu/amx.h"

#include <cstdint>
#include <vector>

#ifdef FASTLLM_OPS_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fastllm::ops::cpu {
#ifdef FASTLLM_OPS_X86
namespace {

constexpr uint32_t kAmxBits = 1u << 22 | 1u << 24 | 1u << 25;  // of CPUID 7.0 EDX: BF16, TILE, INT8
constexpr uint32_t kOsXsave = 1u << 27;                        // of CPUID 1 ECX
constexpr uint32_t kTileState = 3u << 17;                      // of XCR0: configuration and data
constexpr long kReqXcompPerm = 0x1023;                         // arch_prctl: ask for a state component
constexpr long kTileData = 18;

uint32_t SavedStates() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

bool Ask() {
#ifdef FASTLLM_EMULATED_TILES
  return true;
#endif
  uint32_t a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsXsave) == 0) return false;
  if ((SavedStates() & kTileState) != kTileState) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kAmxBits) != kAmxBits) return false;
  return syscall(SYS_arch_prctl, kReqXcompPerm, kTileData) == 0;
}

}  // namespace

bool AmxUsable() {
  static const bool usable = Ask();
  return usable;
}
#else
bool AmxUsable() { return false; }
#endif

char* AmxScratch(int64_t bytes) {
  constexpr uintptr_t kLine = 64;
  thread_local std::vector<char> buffer;
  if (buffer.size() < static_cast<size_t>(bytes) + kLine) buffer.resize(static_cast<size_t>(bytes) + kLine);
  return buffer.data() + (kLine - reinterpret_cast<uintptr_t>(buffer.data()) % kLine) % kLine;
}

}  // namespace fastllm::ops::cpu
