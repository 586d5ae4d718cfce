// TokenTallies: how often each token is in the prompt and the output of sequences with penalties, on the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>

#include "ops/contract/device.h"
#include "ops/contract/feed.h"
#include "runtime/runner/batch_state.h"
#include "runtime/sample/sample_rule.h"
#include "runtime/tensor/placement.h"

namespace fastllm::runtime {

// One row of the vocabulary for each slot of sequences. The host brings what it knows of a sequence when its first
// token is sampled; from then on the device counts what it samples. Runner's thread.
class TokenTallies {
 public:
  // Steps in flight and one more: as many buffers for ids on their way.
  static constexpr int kBuffers = 3;

  // What Create() takes of the device.
  static int64_t DeviceBytes(const BatchState& batch);

  // Null where the device has no room for them.
  static std::unique_ptr<TokenTallies> Create(const ops::DeviceApi& device, ops::CountTokensFn count,
                                              const BatchState& batch, const Placement& placement);
  ~TokenTallies();
  TokenTallies(const TokenTallies&) = delete;
  TokenTallies& operator=(const TokenTallies&) = delete;

  // Before a step is put on the stream: counts what is not yet of the rows with penalties that sample. `buffer` is
  // free: the step that used it is done.
  void Update(const BatchState& batch, const DeviceSampling& device, int buffer, const ops::OpContext& op);

  // Runs what Update() runs, and counts nothing. Waits for it.
  void Rehearse(const BatchState& batch, const ops::OpContext& op);

  ops::TokenTally* counts() const { return static_cast<ops::TokenTally*>(counts_.data_ptr()); }

 private:
  struct Pending {
    int32_t segments = 0;
    int32_t ids = 0;
  };
  TokenTallies(const ops::DeviceApi& device, ops::CountTokensFn count) : device_(device), count_(count) {}
  void Send(const BatchLimits& limits, int32_t num_rows, const Pending& pending, char* buffer,
            const ops::OpContext& op) const;

  const ops::DeviceApi& device_;
  ops::CountTokensFn count_;
  at::Tensor counts_;                      // [slots, vocab]
  at::Tensor stage_;                       // on the device: a buffer
  std::array<char*, kBuffers> buffers_{};  // page-locked: segments, then ids
};

}  // namespace fastllm::runtime
