// Micro benchmarks of the scheduler and the KV block pool, without any model: what one step costs the engine thread.
// Prints one line `RESULT {json}` for each figure; the only argument, if any, keeps the figures whose name contains it.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/kv/block_hash.h"
#include "core/kv/block_pool.h"
#include "core/kv/kv_manager.h"
#include "core/sched/scheduler.h"

namespace {

int64_t num_allocations = 0;  // calls of operator new; the benchmarks have one thread

}  // namespace

void* operator new(size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace fastllm {
namespace {

using Clock = std::chrono::steady_clock;

double NanosSince(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

void Require(bool ok) {
  if (ok) return;
  std::fprintf(stderr, "core_bench: the benchmark's own set-up failed\n");
  std::exit(1);
}

double Median(std::vector<double>* values) {
  const auto middle = values->begin() + static_cast<ptrdiff_t>(values->size() / 2);
  std::nth_element(values->begin(), middle, values->end());
  return *middle;
}

void Report(const std::string& name, double value, const char* unit = "ns") {
  std::printf("RESULT {\"name\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", \"reference\": null, \"ratio\": null}\n",
              name.c_str(), value, unit);
}

std::shared_ptr<Request> MakeRequest(RequestId id, int32_t prompt_tokens, int32_t max_tokens, TokenId first) {
  auto request = std::make_shared<Request>();
  request->id = id;
  request->prompt.resize(prompt_tokens);
  std::iota(request->prompt.begin(), request->prompt.end(), first);
  request->max_tokens = max_tokens;
  return request;
}

// Answers a plan as an executor would, with a token that stops nothing.
StepResult Answer(const StepPlan& plan) {
  StepResult result;
  result.step_id = plan.step_id;
  for (const ScheduledRow& row : plan.rows) {
    if (row.sample) result.rows.push_back({row.id, {7}});
  }
  return result;
}

// Answers a plan as an executor would, with a token that stops nothing, in rows that are used again.
void AnswerInto(const StepPlan& plan, StepResult* result) {
  result->step_id = plan.step_id;
  result->rows.resize(plan.rows.size());
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    result->rows[i].id = plan.rows[i].id;
    result->rows[i].tokens.assign(1, 7);
  }
}

// `count` running sequences that all decode: median time of Schedule() + Update(), and calls of operator new in them,
// over many steps. The plan and the updates are used again, as a loop does.
void BenchDecode(int32_t count) {
  constexpr int kWarmUp = 100, kSteps = 1000;
  SchedConfig sched;
  sched.max_num_seqs = count;
  sched.max_num_batched_tokens = 8192;
  sched.long_prefill_fair_share = false;  // so that all prompts are admitted in few steps
  KvConfig kv;
  kv.num_blocks = count * 100;
  Scheduler scheduler(sched, kv);
  for (int32_t i = 0; i < count; ++i) {
    Require(scheduler.Add(MakeRequest(i + 1, 128, kSteps + 400, i * 200)).ok());
  }
  StepPlan plan;
  StepResult result;
  std::vector<SequenceUpdate> updates;
  std::vector<double> both;
  both.reserve(kSteps);
  int64_t allocations = 0;
  for (int i = 0; i < kWarmUp + kSteps; ++i) {
    int64_t allocated = num_allocations;
    auto start = Clock::now();
    scheduler.ScheduleInto(&plan);
    double nanos = NanosSince(start);
    allocated = num_allocations - allocated;
    if (i < kWarmUp) {
      result = Answer(plan);
    } else {
      Require(static_cast<int32_t>(plan.rows.size()) == count);
      AnswerInto(plan, &result);
    }
    const int64_t before = num_allocations;
    start = Clock::now();
    scheduler.UpdateInto(plan, result, &updates);
    nanos += NanosSince(start);
    if (i < kWarmUp) continue;
    both.push_back(nanos / 1000);
    allocations += allocated + num_allocations - before;
  }
  const std::string suffix = "/running=" + std::to_string(count);
  Report("schedule_update" + suffix, Median(&both), "us");
  Report("allocations_per_step" + suffix, static_cast<double>(allocations) / kSteps, "count");
}

// The whole life of a request that makes one token: Add, Schedule (admission), Update, block by block of its prompt.
// `cached`: all have one prompt, so all but the last block are hits.
void BenchAdmission(int32_t prompt_tokens, bool cached) {
  constexpr int kRequests = 2000;
  SchedConfig sched;
  sched.max_num_batched_tokens = prompt_tokens;
  KvConfig kv;
  kv.num_blocks = 4 * prompt_tokens / kv.block_size + 2;
  Scheduler scheduler(sched, kv);
  std::vector<std::shared_ptr<Request>> requests;
  for (int i = 0; i < kRequests; ++i) requests.push_back(MakeRequest(i + 1, prompt_tokens, 1, cached ? 0 : i * 9));
  const auto start = Clock::now();
  for (const auto& request : requests) {
    Require(scheduler.Add(request).ok());
    const StepPlan plan = scheduler.Schedule();
    scheduler.Update(plan, Answer(plan));
  }
  Report("core/sched/request_" + std::to_string(prompt_tokens) + (cached ? "/cached" : "/new"),
         NanosSince(start) / kRequests);
}

void BenchPool() {
  constexpr int kRounds = 20000, kBlocks = 64;
  BlockPool pool(4096, nullptr);
  std::vector<BlockId> table;
  const auto start = Clock::now();
  for (int i = 0; i < kRounds; ++i) {
    table.clear();
    Require(pool.Allocate(kBlocks, &table));
    pool.Free(table);
  }
  Report("core/kv/pool_allocate_free_block", NanosSince(start) / kRounds / kBlocks);
}

constexpr int32_t kLongPrompt = 8192;

std::vector<TokenId> LongPrompt() {
  std::vector<TokenId> tokens(kLongPrompt);
  std::iota(tokens.begin(), tokens.end(), 1);
  return tokens;
}

// The chain of block hashes of a prompt of 8,192 tokens, as at its first look-up.
void BenchHashPrompt(PrefixHashAlgo algo, const std::string& name) {
  constexpr int kRounds = 500;
  const std::vector<TokenId> tokens = LongPrompt();
  const int32_t block_size = KvConfig{}.block_size;
  const BlockHashSpec spec{algo, 1};
  std::vector<double> nanos;
  uint64_t sum = 0;
  for (int i = 0; i < kRounds; ++i) {
    BlockHash hash = kChainSeed;
    const auto start = Clock::now();
    for (int32_t at = 0; at < kLongPrompt; at += block_size) {
      hash = HashBlock(hash, std::span(tokens).subspan(at, block_size), {}, spec);
    }
    nanos.push_back(NanosSince(start));
    sum ^= hash.lo + i;
  }
  std::fprintf(stderr, "%s: hash %016llx\n", name.c_str(), static_cast<unsigned long long>(sum));
  Report(name, Median(&nanos) / 1000, "us");
}

// A full hit of 8,192 tokens whose hashes are known, as at each later look-up.
void BenchLookup() {
  constexpr int kRounds = 500;
  KvConfig config;
  config.num_blocks = 4096;
  KvManager kv(config);
  std::vector<TokenId> tokens = LongPrompt();
  kv.Open(0, "");
  Require(kv.Admit(0, tokens, kv.FindPrefix(0, tokens), kLongPrompt));
  tokens.push_back(1);
  kv.Open(1, "");
  std::vector<double> nanos;
  for (int i = 0; i < kRounds; ++i) {
    const auto start = Clock::now();
    const int32_t hit = kv.FindPrefix(1, tokens);
    nanos.push_back(NanosSince(start));
    Require(hit == kLongPrompt);
  }
  Report("prefix_lookup/8192", Median(&nanos) / 1000, "us");
}

}  // namespace
}  // namespace fastllm

int main(int argc, char** argv) {
  const std::string filter = argc > 1 ? argv[1] : "";
  const std::vector<std::pair<std::string, std::function<void()>>> benches = {
      {"schedule_update/running=1 allocations_per_step/running=1", [] { fastllm::BenchDecode(1); }},
      {"schedule_update/running=64 allocations_per_step/running=64", [] { fastllm::BenchDecode(64); }},
      {"schedule_update/running=256 allocations_per_step/running=256", [] { fastllm::BenchDecode(256); }},
      {"schedule_update/running=1024 allocations_per_step/running=1024", [] { fastllm::BenchDecode(1024); }},
      {"core/sched/request_2048/new", [] { fastllm::BenchAdmission(2048, false); }},
      {"core/sched/request_2048/cached", [] { fastllm::BenchAdmission(2048, true); }},
      {"core/kv/pool_allocate_free_block", fastllm::BenchPool},
      {"hash_prompt/8192", [] { fastllm::BenchHashPrompt(fastllm::PrefixHashAlgo::kXxHash, "hash_prompt/8192"); }},
      {"hash_prompt_sha256/8192",
       [] { fastllm::BenchHashPrompt(fastllm::PrefixHashAlgo::kSha256, "hash_prompt_sha256/8192"); }},
      {"prefix_lookup/8192", fastllm::BenchLookup},
  };
  for (const auto& [names, run] : benches) {
    if (names.find(filter) != std::string::npos) run();
  }
  return 0;
}
