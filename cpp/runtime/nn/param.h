// Param: one weight of the model as the blocks want it, before and after loading.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ops/contract/half_linear.h"
#include "ops/contract/quant_weight.h"

namespace fastllm::runtime {

// What dummy weights are drawn as.
enum class ParamInit : uint8_t { kMatrix, kNorm, kBias };

// What of one dimension of a checkpoint tensor a parameter holds: all of it, or a rank's share.
struct Slice {
  Slice(int64_t all = 0) : size(all), full(all) {}  // NOLINT(google-explicit-constructor)
  Slice(int64_t begin, int64_t size, int64_t full) : begin(begin), size(size), full(full) {}

  bool whole() const { return size == full; }

  int64_t begin = 0;
  int64_t size = 0;
  int64_t full = 0;
};

// The layers that a model object holds: [first, last) of `total`. Those before and after are other pipeline stages'.
struct LayerSpan {
  int32_t first = 0;
  int32_t last = 0;
  int32_t total = 0;  // 0: all there are

  bool begins() const { return first == 0; }
  bool ends() const { return last == total; }
};

// A matrix [sum of part sizes, cols.size], or a vector [sum of part sizes] when cols.size is 0. Packed weights (q, k
// and v; gate and up) have several parts, stacked by rows in this order; each comes from its own checkpoint tensor.
struct Param {
  std::string name;  // module path, "layers.3.attn.qkv.weight"
  std::vector<Slice> parts;
  Slice cols;
  ParamInit init = ParamInit::kMatrix;
  at::Tensor value;                      // filled by LoadWeights(), unless the weight stays as it is stored:
  std::vector<ops::QuantWeight> packed;  // quantised, one for each part, in memory that the ParamSet keeps
  std::vector<ops::HalfWeight> halves;   // or of 16-bit floats, likewise
  bool is_fp8 = false;                   // value holds 8-bit floats (ops/contract/fp8.h), and
  at::Tensor scale;                      // their scales, float32 [rows]

  bool is_packed() const { return !packed.empty(); }
  bool is_half() const { return !halves.empty(); }
  // Whether it is all of what the checkpoint has, no rank's share.
  bool whole() const {
    return cols.whole() && std::all_of(parts.begin(), parts.end(), [](const Slice& s) { return s.whole(); });
  }
  int64_t rows() const {
    return std::accumulate(parts.begin(), parts.end(), int64_t{0},
                           [](int64_t n, const Slice& s) { return n + s.size; });
  }
  int64_t row_elements() const { return cols.size == 0 ? 1 : cols.size; }
  int64_t numel() const { return rows() * row_elements(); }
};

// The parameters of a model in order of declaration. Pointers stay valid as long as the set.
class ParamSet {
 public:
  Param* Declare(std::string name, std::vector<Slice> parts, Slice cols, ParamInit init) {
    params_.push_back(
        std::make_unique<Param>(Param{std::move(name), std::move(parts), cols, init, {}, {}, {}, false, {}}));
    return params_.back().get();
  }
  const std::vector<std::unique_ptr<Param>>& all() const { return params_; }

  // Keeps the memory of packed weights.
  void Keep(std::shared_ptr<void> memory) { memory_ = std::move(memory); }

 private:
  std::shared_ptr<void> memory_;
  std::vector<std::unique_ptr<Param>> params_;
};

}  // namespace fastllm::runtime
