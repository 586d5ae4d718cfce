// LogitProbe: logits of every position of one token sequence, through the same runner as serving. For tests and for
// comparing with other engines; not on any hot path.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "fastllm/status.h"

namespace fastllm::runtime {

// The strings as the fields of EngineConfig.
struct LogitProbeOptions {
  std::string device = "cpu";
  std::string dtype = "float32";  // of a device; the CPU has float32
  std::string cpu_precision = "auto";
  std::string kv_cache_dtype = "auto";
  std::string attention_backend = "auto";
  std::string quantization = {};     // empty: unset
  bool device_runner = false;        // the runner of the devices on the CPU too
  int32_t tensor_parallel_size = 1;  // as threads, on the CPU
  int32_t pipeline_parallel_size = 1;
  bool batch_invariant = false;
};

class LogitProbe {
 public:
  static Result<std::unique_ptr<LogitProbe>> Create(const std::string& model_path, int32_t num_threads,
                                                    const LogitProbeOptions& options = {});
  virtual ~LogitProbe() = default;
  virtual int32_t vocab_size() const = 0;
  // [tokens.size(), vocab] row-major. The tokens run in steps of `chunk` over blocks of 16 tokens.
  virtual Result<std::vector<float>> Logits(const std::vector<TokenId>& tokens, int32_t chunk) = 0;
};

}  // namespace fastllm::runtime
