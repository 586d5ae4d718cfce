// Followers: sequences that wait for the prompt of another one, their leader, to be computed. One thread.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/base/ids.h"
#include "core/sched/sequence_table.h"

namespace fastllm {

// The outputs of one request (n > 1) have the same prompt. The first leads; the others would compute parts of the
// prompt a second time when they ran next to it, so they join the waiting queue when the last part of it is planned,
// and find all of it in the cache.
class Followers {
 public:
  // num_tokens: of its prompt.
  void Add(RequestId leader, SeqSlot slot, int32_t num_tokens);
  void Remove(RequestId leader, SeqSlot slot, int32_t num_tokens);
  // Those of a leader in the order of Add(); they are followers no more.
  std::vector<SeqSlot> Take(RequestId leader);

  bool empty() const { return size_ == 0; }
  int32_t size() const { return size_; }
  int64_t num_tokens() const { return num_tokens_; }  // of all of them

 private:
  struct Group {
    std::vector<SeqSlot> slots;
    int64_t num_tokens = 0;
  };

  std::unordered_map<RequestId, Group> groups_;
  int32_t size_ = 0;
  int64_t num_tokens_ = 0;
};

}  // namespace fastllm
