#pragma once

#include "fastllm/output.h"

namespace fastllm {

// `later` follows *delta in the news of one request; *delta becomes both.
void JoinDeltas(RequestDelta* delta, RequestDelta later);

}  // namespace fastllm
