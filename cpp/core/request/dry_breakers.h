// DryBreakers: the tokens at which DRY's repetitions end.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "fastllm/status.h"
#include "fastllm/token_table.h"

namespace fastllm {

// From any thread. The last list is remembered: requests seldom bring another than the one before.
class DryBreakers {
 public:
  // `tokens` may be null; then there is nothing to find.
  explicit DryBreakers(std::shared_ptr<const TokenTable> tokens) : tokens_(std::move(tokens)) {}

  // Ids of the tokens whose bytes hold one of the texts, ascending. kInvalidArgument names a text that no single token
  // holds: it could never break anything.
  Result<std::vector<TokenId>> Find(const std::vector<std::string>& texts);

 private:
  std::shared_ptr<const TokenTable> tokens_;
  std::mutex mutex_;
  std::vector<std::string> last_texts_;
  std::vector<TokenId> last_ids_;
};

}  // namespace fastllm
