#include "core/engine/join_deltas.h"

#include <iterator>
#include <utility>
#include <vector>

namespace fastllm {
namespace {

// `more` becomes `list` and then itself; `list` keeps memory to be used again.
template <typename T>
void Prepend(std::vector<T>* list, std::vector<T>* more) {
  list->insert(list->end(), std::make_move_iterator(more->begin()), std::make_move_iterator(more->end()));
  list->swap(*more);
}

}  // namespace

void JoinDeltas(RequestDelta* delta, RequestDelta* later) {
  Prepend(&delta->token_ids, &later->token_ids);
  Prepend(&delta->text_offsets, &later->text_offsets);
  Prepend(&delta->logprobs, &later->logprobs);
  Prepend(&delta->prompt_logprobs, &later->prompt_logprobs);
  delta->text += later->text;
  delta->text.swap(later->text);
  std::swap(*delta, *later);
}

}  // namespace fastllm
