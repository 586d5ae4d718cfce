// Binary form of StepPlan and StepResult, for processes, replay and fuzzing. Little-endian on every host.
//
//   u32 magic   u16 version   u16 kind (1 plan, 2 result)   u64 checksum of the payload   payload
//
// Payload: the fields in declaration order; vectors and strings as a u32 count and the elements; float as its bits.
// The checksum catches every change that stays inside one aligned 8-byte word, and others but for one in 2^64.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/step/step_plan.h"
#include "core/step/step_result.h"
#include "fastllm/status.h"

namespace fastllm {

inline constexpr uint16_t kStepCodecVersion = 3;
inline constexpr size_t kStepHeaderBytes = 16;

std::string EncodeStepPlan(const StepPlan& plan);
std::string EncodeStepResult(const StepResult& result);

// kDataLoss for anything that is not exactly one whole message of this version and kind. Never reads past `bytes`;
// every count is checked against the bytes that are left, so memory stays within a small multiple of the input.
Result<StepPlan> DecodeStepPlan(std::string_view bytes);
Result<StepResult> DecodeStepResult(std::string_view bytes);

// The checksum of a payload, as the header carries it.
uint64_t StepChecksum(std::string_view payload);

}  // namespace fastllm
