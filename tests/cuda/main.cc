// cuda_check [small|tiny] [rows|rope|plan|attention|sample|step|sanitized|fp8|fused|peers|dense]...: every CUDA op of
// the table against float64 or the CPU arm, on random data and poisoned outputs. Exit status 0 when all pass and no
// entry of the table went unchecked.
#include <chrono>
#include <cstdio>
#include <exception>
#include <set>
#include <string>

#include "support.h"

int main(int argc, char** argv) {
  namespace cc = fastllm::cuda_check;
  std::set<std::string> wanted(argv + 1, argv + argc);
  const bool small = wanted.erase("small") > 0, tiny = wanted.erase("tiny") > 0;
  const std::pair<const char*, void (*)(cc::Checks&)> groups[] = {
      {"rows", cc::CheckRows},           {"rope", cc::CheckRope},        {"plan", cc::CheckPlan},
      {"attention", cc::CheckAttention}, {"sample", cc::CheckSample},    {"step", cc::CheckStep},
      {"sanitized", cc::CheckSanitized}, {"fp8", cc::CheckFp8},          {"fused", cc::CheckFusedLinear},
      {"peers", cc::CheckPeers},         {"dense", cc::CheckDenseLinear}};
  cc::Checks checks(small || tiny, tiny);
  int broken = 0;
  for (const auto& [name, run] : groups) {
    if (!wanted.empty() && wanted.count(name) == 0) continue;
    const auto start = std::chrono::steady_clock::now();
    const int before = checks.checks(), failed = checks.failures();
    try {
      run(checks);
    } catch (const std::exception& e) {
      std::printf("FAILED %s: %s\n", name, e.what());
      ++broken;
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("%s: %d checks, %d failed, %.1f s\n", name, checks.checks() - before, checks.failures() - failed,
                seconds);
    std::fflush(stdout);
  }
  if (wanted.empty()) {
    for (const std::string& name : checks.Unused()) {
      std::printf("FAILED %s: not checked\n", name.c_str());
      ++broken;
    }
  }
  return checks.failures() + broken == 0 ? 0 : 1;
}
