// Writes the logits of every position of a token sequence: for comparing with other engines.
//   logits_tool MODEL CHUNK OUT.f32 ID...      raw float32, [number of ids, vocab]
//   logits_tool MODEL CHUNK OUT.f32 @IDS.txt   ids from a file, separated by white space
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/runner/logit_probe.h"

namespace {

std::vector<fastllm::TokenId> ReadIds(int argc, char** argv) {
  std::vector<fastllm::TokenId> ids;
  for (int i = 4; i < argc; ++i) {
    if (argv[i][0] != '@') {
      ids.push_back(std::atoi(argv[i]));
      continue;
    }
    std::ifstream file(argv[i] + 1);
    for (fastllm::TokenId id; file >> id;) ids.push_back(id);
  }
  return ids;
}

int Fail(const std::string& message) {
  std::fprintf(stderr, "logits_tool: %s\n", message.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return Fail("usage: logits_tool MODEL CHUNK OUT.f32 (ID... | @IDS.txt)");
  const std::vector<fastllm::TokenId> ids = ReadIds(argc, argv);
  auto probe = fastllm::runtime::LogitProbe::Create(argv[1], 2);
  if (!probe.ok()) return Fail(probe.status().ToString());
  auto logits = (*probe)->Logits(ids, std::atoi(argv[2]));
  if (!logits.ok()) return Fail(logits.status().ToString());
  std::ofstream out(argv[3], std::ios::binary);
  out.write(reinterpret_cast<const char*>(logits->data()),
            static_cast<std::streamsize>(logits->size() * sizeof(float)));
  out.close();
  if (!out) return Fail(std::string("cannot write ") + argv[3]);
  std::printf("%zu positions, vocabulary %d\n", ids.size(), (*probe)->vocab_size());
  return 0;
}
