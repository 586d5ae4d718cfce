// Times the text of a request in the engine: detokenizer and stop strings, one token at a time, as decoding makes them.
//   text_bench FILE [stop string ...]
// FILE: numbers are uint32 in this machine's order: the size of the vocabulary, then each token as length and bytes;
// the number of ids, then the ids. bench/detokenize.py writes it and times the reference.
// One line: the best of kCalls passes over the ids, in microseconds per token.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/request/request.h"
#include "core/text/text_stream.h"

namespace fastllm {
namespace {

constexpr int kCalls = 15;

uint32_t ReadNumber(std::istream* in) {
  uint32_t value = 0;
  in->read(reinterpret_cast<char*>(&value), sizeof(value));
  return value;
}

int Run(int argc, char** argv) {
  std::ifstream in(argc > 1 ? argv[1] : "", std::ios::binary);
  auto table = std::make_shared<TokenTable>();
  table->bytes.resize(ReadNumber(&in));
  table->special.resize(table->bytes.size());
  for (std::string& token : table->bytes) {
    token.resize(ReadNumber(&in));
    in.read(token.data(), static_cast<std::streamsize>(token.size()));
  }
  std::vector<TokenId> ids(ReadNumber(&in));
  for (TokenId& id : ids) id = static_cast<TokenId>(ReadNumber(&in));
  if (!in || ids.empty()) {
    std::fprintf(stderr, "text_bench: no such file, or it is cut: %s\n", argc > 1 ? argv[1] : "");
    return 1;
  }
  Request request;
  request.sampling.stop.assign(argv + 2, argv + argc);
  double best = std::numeric_limits<double>::infinity();
  size_t bytes = 0;
  for (int call = 0; call < kCalls; ++call) {
    TextStream stream(table, request);
    bytes = 0;
    const auto start = std::chrono::steady_clock::now();
    for (const TokenId id : ids) {
      const TextUpdate update = stream.Append(std::span(&id, 1));
      if (update.stop_string) {
        std::fprintf(stderr, "text_bench: a stop string is in the text\n");
        return 1;
      }
      bytes += update.text.size();
    }
    bytes += stream.Append({}, FinishReason::kLength).text.size();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count() / static_cast<double>(ids.size()));
  }
  std::printf("{\"us_per_token\": %.5f, \"bytes\": %zu}\n", best, bytes);
  return 0;
}

}  // namespace
}  // namespace fastllm

int main(int argc, char** argv) { return fastllm::Run(argc, argv); }
