// StepGuard: ranks compare what they are about to run, so that one that has gone astray is named before its activations
// meet the others'.
#pragma once

#include <cstdint>

#include "fastllm/status.h"
#include "runtime/comm/ranks.h"
#include "runtime/nn/context.h"

namespace fastllm::runtime {

// A hash of a step on the host: its number, tokens, positions, cache slots and rows.
uint64_t StepHash(uint64_t step_id, const StepInput& input);

// On every rank, at the same place of each step: with the other tensor ranks, and with the stages before and after.
// kInternal names the ranks that differ from the first one or from the stage before. Nothing to do for one rank.
Status CompareSteps(const Ranks& ranks, const ops::OpContext& context, uint64_t step_id, uint64_t hash);

}  // namespace fastllm::runtime
