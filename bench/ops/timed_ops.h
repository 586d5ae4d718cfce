// The CPU's ops with a clock around each call, summed by part of a step.
#pragma once

#include <chrono>
#include <cstdint>

#include "ops/contract/attention.h"
#include "ops/contract/half_linear.h"
#include "ops/contract/linear.h"
#include "ops/contract/quant_linear.h"
#include "ops/contract/rms_norm.h"
#include "ops/contract/rope_kv_write.h"
#include "ops/contract/sampling.h"
#include "ops/contract/silu_mul.h"
#include "ops/table/op_table.h"

namespace fastllm::bench {

enum class Part : int32_t { kLinear, kHead, kAttention, kRope, kNorm, kSilu, kSampling };
inline constexpr int32_t kParts = 7;
inline const char* PartName(Part part) {
  constexpr const char* kNames[kParts] = {"linear", "head",     "attention", "rope_kv_write",
                                          "norm",   "silu_mul", "sampling"};
  return kNames[static_cast<int32_t>(part)];
}

inline double seconds[kParts] = {};  // of the one thread that calls the ops

inline constexpr int32_t kHeadColumns = 16384;  // a product with so many is the output head

template <typename Params>
Part PartOf(Part part, const Params& p) {
  if constexpr (requires { p.n* p.k; }) return p.n >= kHeadColumns ? Part::kHead : part;
  return part;
}

template <ops::OpId O, Part P, typename Params>
struct Timed {
  using Fn = void (*)(const Params&, const ops::OpContext&);
  static inline Fn real = nullptr;
  static void Call(const Params& params, const ops::OpContext& ctx) {
    const auto start = std::chrono::steady_clock::now();
    real(params, ctx);
    seconds[static_cast<int32_t>(PartOf(P, params))] +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  static void Register(ops::OpTable* table) {
    const auto entry = table->Find({O, ops::Device::kCpu, ops::DType::kF32});
    if (!entry.ok()) return;
    ops::OpEntry timed = **entry;
    real = reinterpret_cast<Fn>(timed.fn);
    timed.fn = reinterpret_cast<ops::AnyFn>(&Call);
    timed.priority = 1000;
    table->Register(timed);
  }
};

inline ops::OpTable TimedCpuOps() {
  using ops::OpId;
  ops::OpTable table;
  ops::RegisterCpuOps(table);
  Timed<OpId::kLinear, Part::kLinear, ops::LinearParams>::Register(&table);
  Timed<OpId::kQuantLinear, Part::kLinear, ops::QuantLinearParams>::Register(&table);
  Timed<OpId::kQuantMlp, Part::kLinear, ops::QuantMlpParams>::Register(&table);  // its SiLU included
  Timed<OpId::kQuantMlpExact, Part::kLinear, ops::QuantMlpParams>::Register(&table);
  Timed<OpId::kQuantPick, Part::kLinear, ops::QuantPickParams>::Register(&table);  // sampling of the head included
  Timed<OpId::kHalfLinear, Part::kLinear, ops::HalfLinearParams>::Register(&table);
  Timed<OpId::kPagedAttention, Part::kAttention, ops::PagedAttentionParams>::Register(&table);
  Timed<OpId::kRopeKvWrite, Part::kRope, ops::RopeKvWriteParams>::Register(&table);
  Timed<OpId::kRmsNorm, Part::kNorm, ops::RmsNormParams>::Register(&table);
  Timed<OpId::kSiluMul, Part::kSilu, ops::SiluMulParams>::Register(&table);
  Timed<OpId::kSample, Part::kSampling, ops::SampleParams>::Register(&table);
  return table;
}

}  // namespace fastllm::bench
