// What AMX needs of baseline code.
#pragma once

#include <cstdint>

namespace fastllm::ops::cpu {

// CPUID has tiles of int8 and bfloat16, the system saves them, and it lets this process use them: Linux gives the
// tiles' 8 KiB of state to those that ask. Asks at the first call; threads started later inherit the answer.
bool AmxUsable();

// Memory of the calling thread that starts a cache line, at least `bytes`; contents are leftovers. Valid until the next
// call on the thread.
char* AmxScratch(int64_t bytes);

}  // namespace fastllm::ops::cpu
