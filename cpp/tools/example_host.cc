// A complete C++ host of the engine: loads a model, submits token ids, prints the streamed ids and text.
//   example_host MODEL MAX_TOKENS ID [ID...]
// Prints one line of ids and then the text. Exit status 1 with a message on standard error when anything fails.
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "fastllm/engine.h"

namespace {

int Fail(const std::string& message) {
  std::fprintf(stderr, "example_host: %s\n", message.c_str());
  return 1;
}

bool ParseInt(const char* text, int32_t* value) {
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, *value);
  return error == std::errc() && stop == end;
}

}  // namespace

int main(int argc, char** argv) {
  fastllm::EngineConfig config;
  if (argc > 1 && std::strcmp(argv[1], "--float32") == 0) {
    config.model.cpu_precision = "float32";
    --argc;
    ++argv;
  }
  if (argc < 4) return Fail("usage: example_host [--float32] MODEL MAX_TOKENS ID [ID...]");
  config.model.model = argv[1];
  fastllm::GenerationRequest request;
  request.sampling.temperature = 0;  // greedy
  request.sampling.ignore_eos = true;
  int32_t number = 0;
  if (!ParseInt(argv[2], &number)) return Fail(std::string("MAX_TOKENS is not a number: ") + argv[2]);
  request.sampling.max_tokens = number;
  for (int i = 3; i < argc; ++i) {
    if (!ParseInt(argv[i], &number)) return Fail(std::string("a token id is not a number: ") + argv[i]);
    request.prompt_token_ids.push_back(number);
  }

  auto engine = fastllm::Engine::Create(config);
  if (!engine.ok()) return Fail(engine.status().ToString());
  const auto handle = (*engine)->Submit(std::move(request));
  if (!handle.ok()) return Fail(handle.status().ToString());

  std::string text;
  for (bool finished = false; !finished;) {
    for (const fastllm::RequestDelta& delta : (*engine)->Drain(std::chrono::seconds(1))) {
      for (const int32_t id : delta.token_ids) std::printf("%d ", id);
      std::fflush(stdout);
      text += delta.text;
      finished = delta.finish_reason != fastllm::FinishReason::kNone;
      if (delta.finish_reason == fastllm::FinishReason::kError) return Fail(delta.error);
    }
    if (const fastllm::Status health = (*engine)->health(); !finished && !health.ok()) return Fail(health.ToString());
  }
  std::printf("\n%s\n", text.c_str());
  return 0;
}
