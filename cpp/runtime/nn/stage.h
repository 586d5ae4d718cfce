#pragma once

#include <initializer_list>
#include <memory>

#include "runtime/nn/builder.h"
#include "runtime/nn/context.h"

namespace fastllm::runtime {

// The ends of the part of a model that is built. Between two parts the activations of a step's tokens pass on: all of
// them, in the order given on both sides.
class Stage {
 public:
  explicit Stage(const Builder& b) : layers_(b.layers()), ranks_(b.ranks().pipeline) {}

  int32_t first_layer() const { return layers_.first; }
  int32_t last_layer() const { return layers_.last; }  // one past it
  bool begins() const { return layers_.begins(); }     // the embedding is here
  bool ends() const { return layers_.ends(); }         // the last norm and the output head are here

  void Take(const ForwardContext& ctx, std::initializer_list<const at::Tensor*> activations) const;
  void Pass(const ForwardContext& ctx, std::initializer_list<const at::Tensor*> activations) const;

 private:
  LayerSpan layers_;
  std::shared_ptr<Communicator> ranks_;
};

}  // namespace fastllm::runtime
