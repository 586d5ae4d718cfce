// Decode and prefill speed of the runner alone (no scheduler, no text), and greedy ids of a prompt.
//   runner_bench MODEL speed THREADS PREFILL ROWS STEPS
//   runner_bench MODEL greedy THREADS STEPS @IDS.txt
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/engine/executor.h"
#include "runtime/executor/local_executor.h"

namespace {

using fastllm::BlockId;
using fastllm::StepPlan;
using fastllm::StepResult;

constexpr int kBlockSize = 16;

int Fail(const std::string& message) {
  std::fprintf(stderr, "runner_bench: %s\n", message.c_str());
  return 1;
}

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// All rows hold the same prompt, each with blocks of its own for `total` tokens.
StepPlan Prefill(const std::vector<int32_t>& prompt, int rows, int total) {
  StepPlan plan;
  const int blocks = (total + kBlockSize - 1) / kBlockSize;
  for (int r = 0; r < rows; ++r) {
    fastllm::NewSequence s;
    s.id = static_cast<fastllm::RequestId>(r + 1);
    s.tokens = prompt;
    s.num_prompt_tokens = static_cast<int32_t>(prompt.size());
    s.block_ids.resize(1);
    for (int b = 0; b < blocks; ++b) s.block_ids[0].push_back(1 + r * blocks + b);
    plan.rows.push_back({s.id, s.num_prompt_tokens, true});
    plan.total_tokens += s.num_prompt_tokens;
    plan.added.push_back(std::move(s));
  }
  return plan;
}

StepPlan Decode(int rows, int computed) {
  StepPlan plan;
  for (int r = 0; r < rows; ++r) {
    const auto id = static_cast<fastllm::RequestId>(r + 1);
    plan.diffs.push_back({id, computed, {{}}});
    plan.rows.push_back({id, 1, true});
  }
  plan.total_tokens = rows;
  return plan;
}

int Run(const std::string& model, int threads, const std::vector<int32_t>& prompt, int rows, int steps,
        bool print_ids) {
  const double start = Now();
  auto source = fastllm::runtime::OpenModel(model, "auto");
  if (!source.ok()) return Fail(source.status().ToString());
  const double opened = Now();
  const int prompt_size = static_cast<int>(prompt.size());
  fastllm::runtime::RunnerOptions options;
  options.num_threads = threads;
  options.kv_dtype = fastllm::runtime::KvDType("auto", fastllm::runtime::UsesQuantized(*source, true));
  options.sched.max_model_len = source->config.max_position_embeddings;
  options.sched.max_num_seqs = rows;
  options.sched.max_num_batched_tokens = rows * prompt_size;
  options.kv.num_blocks = 1 + rows * ((prompt_size + steps + kBlockSize) / kBlockSize + 1);
  fastllm::runtime::PhaseSeconds phases;
  auto executor = fastllm::runtime::MakeLocalExecutor(std::move(*source), options, &phases);
  if (!executor.ok()) return Fail(executor.status().ToString());
  std::fprintf(stderr, "open %.3f s", opened - start);
  for (const auto& [name, seconds] : phases) std::fprintf(stderr, ", %s %.3f s", name.c_str(), seconds);
  double t = Now();
  StepPlan plan = Prefill(prompt, rows, prompt_size + steps);  // stays as it is until its result is here
  StepResult result;
  (*executor)->Submit(plan);
  (*executor)->Wait(&result);
  if (!result.status.ok()) return Fail(result.status.ToString());
  std::fprintf(stderr, "\nprefill %d x %d: %.1f tok/s\n", rows, prompt_size, rows * prompt_size / (Now() - t));
  std::vector<int32_t> ids = {result.rows[0].tokens[0]};
  t = Now();
  for (int i = 1; i < steps; ++i) {
    plan = Decode(rows, prompt_size + i - 1);
    (*executor)->Submit(plan);
    (*executor)->Wait(&result);
    if (!result.status.ok()) return Fail(result.status.ToString());
    ids.push_back(result.rows[0].tokens[0]);
  }
  std::fprintf(stderr, "decode %d rows: %.1f tok/s, %.2f ms a step\n", rows, rows * (steps - 1) / (Now() - t),
               1e3 * (Now() - t) / (steps - 1));
  if (print_ids) {
    for (const int32_t id : ids) std::printf("%d ", id);
    std::printf("\n");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6 && argc != 7)
    return Fail("usage: runner_bench MODEL (speed THREADS PREFILL ROWS STEPS | greedy THREADS STEPS @IDS)");
  const int threads = std::atoi(argv[3]);
  std::vector<int32_t> prompt;
  if (std::string(argv[2]) == "speed" && argc == 7) {
    for (int i = 0; i < std::atoi(argv[4]); ++i) prompt.push_back(1000 + i * 7 % 4000);
    return Run(argv[1], threads, prompt, std::atoi(argv[5]), std::atoi(argv[6]), false);
  }
  std::ifstream file(argv[5] + 1);
  for (int32_t id; file >> id;) prompt.push_back(id);
  return Run(argv[1], threads, prompt, 1, std::atoi(argv[4]), true);
}
