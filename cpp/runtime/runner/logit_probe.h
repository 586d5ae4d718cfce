// LogitProbe: logits of every position of one token sequence, through the same runner as serving. For tests and for
// comparing with other engines; not on any hot path.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "fastllm/status.h"

namespace fastllm::runtime {

class LogitProbe {
 public:
  // device cpu or cuda; dtype float32, bfloat16 or float16. `device_runner` takes the runner of the devices on the CPU
  // too.
  static Result<std::unique_ptr<LogitProbe>> Create(const std::string& model_path, int32_t num_threads,
                                                    const std::string& device = "cpu",
                                                    const std::string& dtype = "float32", bool device_runner = false);
  virtual ~LogitProbe() = default;
  virtual int32_t vocab_size() const = 0;
  // [tokens.size(), vocab] row-major. The tokens run in steps of `chunk` over blocks of 16 tokens.
  virtual Result<std::vector<float>> Logits(const std::vector<TokenId>& tokens, int32_t chunk) = 0;
};

}  // namespace fastllm::runtime
