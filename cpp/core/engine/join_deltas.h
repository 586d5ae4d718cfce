// How news of one output that nobody has taken yet grows by later news: what of a delta adds up is known here alone.
#pragma once

#include "fastllm/output.h"

namespace fastllm {

// *delta becomes *delta followed by *later, both of the same output: token ids, text, offsets and logprobs are joined,
// what else there is comes from *later. *later is left with memory to be used again and unspecified values. Any thread.
void JoinDeltas(RequestDelta* delta, RequestDelta* later);

}  // namespace fastllm
