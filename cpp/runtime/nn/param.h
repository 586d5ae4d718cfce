// Param: one weight of the model as the blocks want it, before and after loading.
#pragma once

#include <ATen/core/Tensor.h>

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

// A matrix [sum of part_rows, cols], or a vector [sum of part_rows] when cols is 0. Packed weights (q, k and
// v; gate and up) have several parts, stacked by rows in this order; each comes from its own checkpoint tensor.
struct Param {
  std::string name;  // module path, "layers.3.attn.qkv.weight"
  std::vector<int64_t> part_rows;
  int64_t cols = 0;
  ParamInit init = ParamInit::kMatrix;
  at::Tensor value;                      // filled by LoadWeights(), unless the weight stays as it is stored:
  std::vector<ops::QuantWeight> packed;  // quantised, one for each part, in memory that the ParamSet keeps
  std::vector<ops::HalfWeight> halves;   // or of 16-bit floats, likewise
  bool is_fp8 = false;                   // value holds 8-bit floats (ops/contract/fp8.h), and
  at::Tensor scale;                      // their scales, float32 [rows]

  bool is_packed() const { return !packed.empty(); }
  bool is_half() const { return !halves.empty(); }
  int64_t rows() const { return std::accumulate(part_rows.begin(), part_rows.end(), int64_t{0}); }
  int64_t row_elements() const { return cols == 0 ? 1 : cols; }
  int64_t numel() const { return rows() * row_elements(); }
};

// The parameters of a model in order of declaration. Pointers stay valid as long as the set.
class ParamSet {
 public:
  Param* Declare(std::string name, std::vector<int64_t> part_rows, int64_t cols, ParamInit init) {
    params_.push_back(
        std::make_unique<Param>(Param{std::move(name), std::move(part_rows), cols, init, {}, {}, {}, false, {}}));
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
