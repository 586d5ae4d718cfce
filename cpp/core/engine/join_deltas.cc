#include "core/engine/join_deltas.h"

#include <iterator>
#include <utility>
#include <vector>

namespace fastllm {
namespace {

// *later becomes what *earlier holds, then what it held itself.
template <typename T>
void Prepend(std::vector<T>* earlier, std::vector<T>* later) {
  earlier->insert(earlier->end(), std::make_move_iterator(later->begin()), std::make_move_iterator(later->end()));
  *later = std::move(*earlier);
}

}  // namespace

void JoinDeltas(RequestDelta* delta, RequestDelta later) {
  Prepend(&delta->token_ids, &later.token_ids);
  Prepend(&delta->logprobs, &later.logprobs);
  Prepend(&delta->prompt_logprobs, &later.prompt_logprobs);
  delta->text += later.text;
  later.text = std::move(delta->text);
  *delta = std::move(later);
}

}  // namespace fastllm
