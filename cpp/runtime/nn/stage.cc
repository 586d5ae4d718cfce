#include "runtime/nn/stage.h"

#include "runtime/nn/talk.h"

namespace fastllm::runtime {

void Stage::Take(const ForwardContext& ctx, std::initializer_list<const at::Tensor*> activations) const {
  for (const at::Tensor* t : activations) {
    ThrowIfError(ranks_->Recv(ctx.op, t->mutable_data_ptr(), t->numel(), CommTypeOf(*t), ranks_->rank() - 1));
  }
}

void Stage::Pass(const ForwardContext& ctx, std::initializer_list<const at::Tensor*> activations) const {
  for (const at::Tensor* t : activations) {
    ThrowIfError(ranks_->Send(ctx.op, t->const_data_ptr(), t->numel(), CommTypeOf(*t), ranks_->rank() + 1));
  }
}

}  // namespace fastllm::runtime
