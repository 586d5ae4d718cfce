#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>

#include "core/engine/engine_core.h"
#include "core/engine/recording.h"
#include "core/engine/replay.h"
#include "engine_fake_executor.h"
#include "engine_fixture.h"

namespace fastllm {
namespace {

// A path that no other test process has; the file goes with it.
struct TempFile {
  std::string path =
      (std::filesystem::temp_directory_path() / ("fastllm_replay_" + std::to_string(getpid()) + ".rec")).string();
  ~TempFile() { std::filesystem::remove(path); }
};

std::string Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Spill(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

TokenId Cycle(std::span<const TokenId> tokens, size_t) { return (tokens.back() + 1) % 8; }

EngineCoreOptions Recorded(const std::string& path, const SchedConfig& sched, const KvConfig& kv,
                           int64_t max_bytes = 1 << 26) {
  EngineCoreOptions options;
  options.recorder = std::move(Recorder::Open(path, max_bytes, sched, kv)).value();
  return options;
}

// 60 random requests with shared prefixes, aborts, stops and preemptions; returns the engine's last statistics.
EngineStats RecordLoad(const std::string& path, bool async, int64_t max_bytes = 1 << 26) {
  SchedConfig sched = Sched(6);
  sched.async_scheduling = async;
  sched.max_num_batched_tokens = 24;
  const KvConfig kv = Kv(20);
  EngineCore engine(sched, kv, std::make_unique<FakeExecutor>(Cycle), Letters(), Recorded(path, sched, kv, max_bytes));
  std::mt19937 rng(7);
  constexpr int kRequests = 60;
  for (RequestId id = 1; id <= kRequests; ++id) {
    auto request =
        MakeRequest(id, Ids(1 + rng() % 25, static_cast<TokenId>(rng() % 2)), 1 + static_cast<int32_t>(rng() % 20));
    request->sampling.temperature = 0.5f;
    request->sampling.seed = 42;
    if (rng() % 3 == 0) request->sampling.stop = {"def"};
    if (rng() % 4 == 0) request->extra_keys.cache_salt = "salt";
    EXPECT_TRUE(engine.Add(request).ok());
    if (rng() % 5 == 0) engine.Abort(id - rng() % 3);
  }
  Collect(&engine, kRequests);
  EXPECT_TRUE(engine.Pause(PauseMode::kWait).ok());
  EXPECT_TRUE(engine.ResetPrefixCache().ok());
  EXPECT_TRUE(engine.Resume().ok());
  EXPECT_TRUE(engine.Add(MakeRequest(1000, Ids(9, 0), 3)).ok());
  EXPECT_EQ(Collect(&engine, 1)[1000].last.num_cached_tokens, 0);
  engine.Shutdown();
  return engine.stats();
}

TEST(Replay, ARecordedRunGivesTheSamePlanBytes) {
  for (const bool async : {true, false}) {
    const TempFile file;
    const EngineStats stats = RecordLoad(file.path, async);
    EXPECT_GT(stats.preemptions, 0);
    const auto report = Replay(file.path);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(report->requests, 61);
    EXPECT_EQ(report->steps, stats.steps);
    EXPECT_EQ(report->tokens, stats.scheduled_tokens);
    EXPECT_FALSE(report->full);
    EXPECT_FALSE(report->cut);
    EXPECT_EQ(report->failure, "");
  }
}

// The offset and the kind of each frame.
std::vector<std::pair<size_t, FrameKind>> Frames(const std::string& bytes) {
  std::vector<std::pair<size_t, FrameKind>> frames;
  for (size_t at = kRecordingHeaderBytes; at + kFrameHeaderBytes <= bytes.size();) {
    frames.emplace_back(at, static_cast<FrameKind>(bytes[at]));
    at += kFrameHeaderBytes + LoadLittle<uint32_t>(&bytes[at + 1]);
  }
  return frames;
}

TEST(Replay, AnotherPlanIsReportedWithItsStep) {
  const TempFile file;
  RecordLoad(file.path, true);
  std::string bytes = Slurp(file.path);
  const auto frames = Frames(bytes);
  // An abort that the scheduler never heard of changes what it plans from there on.
  const auto finish =
      std::find_if(frames.begin(), frames.end(), [](auto& f) { return f.second == FrameKind::kFinish; });
  ASSERT_NE(finish, frames.end());
  bytes.erase(finish->first, kFrameHeaderBytes + 8);
  Spill(file.path, bytes);
  const auto report = Replay(file.path);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), StatusCode::kInternal);
  EXPECT_NE(report.status().message().find("the plan after step "), std::string::npos) << report.status().message();
  EXPECT_NE(report.status().message().find("differs from byte "), std::string::npos) << report.status().message();
}

TEST(Replay, ACutFileIsReplayedUpToTheCut) {
  const TempFile file;
  const EngineStats stats = RecordLoad(file.path, true);
  const std::string bytes = Slurp(file.path);
  const auto frames = Frames(bytes);
  Spill(file.path, bytes.substr(0, frames[frames.size() / 2].first + 3));
  const auto report = Replay(file.path);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_TRUE(report->cut);
  EXPECT_GT(report->steps, 0);
  EXPECT_LT(report->steps, stats.steps);
}

TEST(Replay, TheFileStaysWithinItsLimitAndTheEngineGoesOn) {
  const TempFile file;
  RecordLoad(file.path, true);
  const auto limit = static_cast<int64_t>(std::filesystem::file_size(file.path)) * 3 / 4;
  const EngineStats stats = RecordLoad(file.path, true, limit);
  EXPECT_EQ(stats.finished_requests, 61);
  EXPECT_LE(std::filesystem::file_size(file.path), static_cast<uintmax_t>(limit));
  const auto report = Replay(file.path);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_TRUE(report->full);
  EXPECT_GT(report->steps, 0);
  EXPECT_LT(report->steps, stats.steps);
}

TEST(Replay, AFailureOfTheExecutorIsInTheRecording) {
  const TempFile file;
  auto num_steps = std::make_shared<int>(0);
  {
    EngineCore engine(Sched(), Kv(),
                      std::make_unique<FakeExecutor>(Cycle,
                                                     [=](StepResult* r) {
                                                       if (++*num_steps == 3)
                                                         r->status = Status::Internal("device lost");
                                                     }),
                      Letters(), Recorded(file.path, Sched(), Kv()));
    ASSERT_TRUE(engine.Add(MakeRequest(1, {0}, 20)).ok());
    EXPECT_EQ(Collect(&engine, 1)[1].last.finish_reason, FinishReason::kError);
    // Whoever is told of the failure finds the whole recording on the disk.
    const auto report = Replay(file.path);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(report->steps, 4);  // the fourth was under way
    EXPECT_EQ(report->failure, "internal: device lost");
  }
}

TEST(Replay, ARecordingOfAnotherVersionSaysSo) {
  const TempFile file;
  RecordLoad(file.path, true);
  std::string bytes = Slurp(file.path);
  ASSERT_EQ(bytes[7], 6);
  bytes[7] = 1;
  Spill(file.path, bytes);
  const Status status = Replay(file.path).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(), file.path +
                                  " is a recording of version 1, this build reads version 6: replay it with the "
                                  "build that wrote it");
}

// Which blocks are taken depends on pins, and a pin that ends depends on the time.
TEST(Replay, PinsAndTheirEndsAreInTheRecording) {
  const TempFile file;
  const KvConfig kv = Kv(9);
  {
    EngineCore engine(Sched(), kv, std::make_unique<FakeExecutor>(Cycle), Letters(), Recorded(file.path, Sched(), kv));
    RequestId id = 0;
    const auto run = [&](Ids prompt, bool read) {
      auto request = MakeRequest(++id, std::move(prompt), 1);
      request->read_prefix_cache = read;
      ASSERT_TRUE(engine.Add(request).ok());
      Collect(&engine, 1);
    };
    for (const int64_t ttl_ms : {0, 1}) {
      run(Ids(9, 3), true);
      const auto pinned = engine.PinPrefix(Ids(9, 3), {}, 5, ttl_ms);
      ASSERT_TRUE(pinned.ok());
      EXPECT_EQ(*pinned, 8);
      for (TokenId t = 4; t < 8; ++t) run(Ids(12, t), true);  // more than the pool
      if (ttl_ms == 0) {
        EXPECT_EQ(engine.CountCachedTokens(Ids(9, 3), {}).value(), 8);
      }
    }
    EXPECT_EQ(engine.PinPrefix({1}, {}, 64, 0).status().code(), StatusCode::kInvalidArgument);
  }
  const auto report = Replay(file.path);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->requests, 10);
  // Without its pins it is another run.
  std::string bytes = Slurp(file.path);
  const auto frames = Frames(bytes);
  const auto pin = std::find_if(frames.begin(), frames.end(), [](auto& f) { return f.second == FrameKind::kPin; });
  ASSERT_NE(pin, frames.end());
  bytes.erase(pin->first, kFrameHeaderBytes + LoadLittle<uint32_t>(&bytes[pin->first + 1]));
  Spill(file.path, bytes);
  EXPECT_EQ(Replay(file.path).status().code(), StatusCode::kInternal);
}

TEST(Replay, BadFilesAreRefused) {
  const TempFile file;
  EXPECT_EQ(Replay(file.path).status().code(), StatusCode::kNotFound);
  Spill(file.path, "not a recording at all");
  EXPECT_EQ(Replay(file.path).status().code(), StatusCode::kDataLoss);
  RecordLoad(file.path, true);
  const std::string bytes = Slurp(file.path);
  std::string other = bytes;
  other[Frames(bytes)[3].first] = 77;  // a kind that does not exist
  Spill(file.path, other);
  EXPECT_EQ(Replay(file.path).status().code(), StatusCode::kDataLoss);
  std::string headless = bytes;  // without its configuration
  headless.erase(kRecordingHeaderBytes, Frames(bytes)[1].first - kRecordingHeaderBytes);
  Spill(file.path, headless);
  EXPECT_EQ(Replay(file.path).status().code(), StatusCode::kDataLoss);
}

// No change of a byte makes it crash or hang; it is reported, or does not matter (sampling parameters of a request).
TEST(Replay, DamagedFilesEndInAStatus) {
  const TempFile file;
  RecordLoad(file.path, true, 30000);
  const std::string bytes = Slurp(file.path);
  const size_t after_config = Frames(bytes)[1].first;
  std::mt19937 rng(5);
  int num_refused = 0;
  for (int i = 0; i < 300; ++i) {
    std::string damaged = bytes;
    damaged[after_config + rng() % (bytes.size() - after_config)] ^= static_cast<char>(1u << rng() % 8);
    Spill(file.path, damaged);
    num_refused += !Replay(file.path).ok();
  }
  EXPECT_GT(num_refused, 100);
}

TEST(Recorder, AnImpossiblePathOrLimitIsRefused) {
  EXPECT_EQ(Recorder::Open("/nowhere/at/all.rec", 1000, Sched(), Kv()).status().code(), StatusCode::kInvalidArgument);
  const TempFile file;
  EXPECT_EQ(Recorder::Open(file.path, 20, Sched(), Kv()).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fastllm
