// Ranks in threads that join over devices: in which order, and what one that fails or hangs meanwhile does to the
// others. The devices and what connects them are made up.
#include "runtime/device/join_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/executor/threads_executor.h"
#include "runtime/runner/make_runner.h"
#include "tests/runtime/model/executor_support.h"
#include "tests/runtime/model/idle_device.h"
#include "tests/runtime/model/peer_support.h"

namespace fastllm::runtime {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ranked::Options;
using testing::ranked::Source;

constexpr int32_t kRanks = 3;

enum class Fault {
  kNone,
  kAllHangInConnect,
  kNoStream,
  kNoConnection,
  kHangsInConnect,
  kCallFails,
  kHangsOnDevice,
  kHangsInJoin
};

// What happens where; shared by all that a thread which is left behind may still use.
struct Scene {
  Fault fault = Fault::kNone;
  int32_t culprit = 1;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> events;
  bool over = false;  // lets those go that hang
  std::atomic<int> back{0};

  bool At(Fault f, int32_t rank) const { return f == fault && rank == culprit; }
  void Say(const std::string& what) {
    const std::lock_guard lock(mutex);
    events.push_back(what);
  }
  size_t FirstOf(const std::string& what) const { return std::ranges::find(events, what) - events.begin(); }
  void Hang() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return over; });
  }
  void End() {
    const std::lock_guard lock(mutex);
    over = true;
    changed.notify_all();
  }
};

// The device of a rank. What is put on it waits for the others', unless the group has been told not to.
class Board : public testing::IdleDevice {
 public:
  Board(std::shared_ptr<Scene> scene, int32_t rank) : scene_(std::move(scene)), rank_(rank) {}
  void* CreateStream() const override {
    if (scene_->At(Fault::kNoStream, rank_)) throw std::runtime_error("no stream is left");
    scene_->Say("ready");
    return nullptr;
  }
  bool IsDone(void*) const override {
    if (scene_->At(Fault::kHangsOnDevice, rank_)) return false;
    return stopped || scene_->fault == Fault::kNone;
  }

  std::atomic<bool> stopped{false};

 private:
  const std::shared_ptr<Scene> scene_;
  const int32_t rank_;
};

// Puts its calls on the board: they return at once.
class OnBoard : public testing::Counting {
 public:
  OnBoard(testing::Ptr inner, std::shared_ptr<Scene> scene, std::shared_ptr<Board> board)
      : Counting(std::move(inner)), scene_(std::move(scene)), board_(std::move(board)) {}
  Status AllReduceSum(const ops::OpContext& c, void* data, int64_t count, CommType type) override {
    if (live) return Counting::AllReduceSum(c, data, count, type);
    ++sums;
    if (scene_->At(Fault::kCallFails, rank())) return Status::Unavailable("the cable is gone");
    return Status::Ok();
  }
  Status AllGather(const ops::OpContext& c, const void* in, void* out, int64_t count, CommType type) override {
    return live ? Counting::AllGather(c, in, out, count, type) : Status::Ok();
  }
  void Abort(const Status& why) override {
    board_->stopped = true;
    const std::lock_guard lock(mutex_);
    if (why_.ok()) why_ = why;
  }
  Status broken() const override {
    const std::lock_guard lock(mutex_);
    return why_;
  }

  std::atomic<bool> live{false};

 private:
  const std::shared_ptr<Scene> scene_;
  const std::shared_ptr<Board> board_;
  mutable std::mutex mutex_;
  Status why_;
};

Status JoinOver(const std::shared_ptr<Scene>& scene, milliseconds timeout, Ranks* ranks, const AnnounceFn& announce) {
  const int32_t rank = ranks->topology.rank;
  if (scene->At(Fault::kHangsInJoin, rank)) scene->Hang();
  const auto board = std::make_shared<Board>(scene, rank);
  std::shared_ptr<OnBoard> own;
  JoinPlan plan;
  plan.peers = testing::PeersOnThreads(rank);
  plan.timeout = timeout;
  plan.announce = announce;
  plan.connect = [&](const Ranks& all) -> Result<std::shared_ptr<Communicator>> {
    scene->Say("connect");
    if (scene->At(Fault::kNoConnection, rank)) return Status::Unavailable("nobody answers");
    if (scene->At(Fault::kHangsInConnect, rank) || scene->fault == Fault::kAllHangInConnect) scene->Hang();
    own = std::make_shared<OnBoard>(all.host, scene, board);
    return std::shared_ptr<Communicator>(own);
  };
  const Status status = JoinRanks(*board, plan, ranks);
  if (own != nullptr) own->live = true;
  ++scene->back;
  return status;
}

// Times for meetings in memory and for the first sums on devices.
Result<std::unique_ptr<Executor>> Start(const std::shared_ptr<Scene>& scene, milliseconds meet, milliseconds sum) {
  RankThreadsOptions threads;
  threads.sizes = {kRanks};
  threads.timeout = threads.least_start = meet;
  threads.join = [scene, sum](Ranks* ranks, const AnnounceFn& announce) {
    return JoinOver(scene, sum, ranks, announce);
  };
  return MakeThreadsExecutor(Source(), Options({"", {kRanks}}), threads, nullptr);
}

TEST(JoinRanksTest, AllAreReadyBeforeAnybodyConnects) {
  const auto scene = std::make_shared<Scene>();
  auto executor = Start(scene, seconds(60), seconds(60));
  ASSERT_TRUE(executor.ok()) << executor.status().ToString();
  EXPECT_EQ(std::ranges::count(scene->events, "ready"), kRanks);
  EXPECT_EQ(std::ranges::count(scene->events, "connect"), kRanks);
  EXPECT_EQ(scene->FirstOf("connect"), static_cast<size_t>(kRanks));
}

struct FaultCase {
  const char* name;
  Fault fault;
  int64_t meet_ms;
  int64_t sum_ms;
  const char* message;  // behind the rank's name
  int back;             // ranks that have come back
};

class JoinFaults : public ::testing::TestWithParam<FaultCase> {};

TEST_P(JoinFaults, EndTheStartWithTheRanksName) {
  const FaultCase& p = GetParam();
  const auto scene = std::make_shared<Scene>();
  scene->fault = p.fault;
  const auto start = std::chrono::steady_clock::now();
  const auto executor = Start(scene, milliseconds(p.meet_ms), milliseconds(p.sum_ms));
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(30));
  EXPECT_TRUE(executor.status().message().starts_with("rank 1 (tp 1, pp 0)")) << executor.status().message();
  EXPECT_NE(executor.status().message().find(p.message), std::string::npos) << executor.status().message();
  EXPECT_EQ(scene->back, p.back);
  scene->End();
}

const FaultCase kFaults[] = {
    {"NoStream", Fault::kNoStream, 60000, 60000, ": no stream is left", 2},  // it throws
    {"NoConnection", Fault::kNoConnection, 60000, 60000, ": nobody answers", 3},
    {"CallFails", Fault::kCallFails, 60000, 60000, ": the cable is gone", 3},
    {"HangsInConnect", Fault::kHangsInConnect, 2000, 400, " did not answer the other ranks within 2000 ms", 2},
    {"HangsOnDevice", Fault::kHangsOnDevice, 60000, 400,
     " did not finish its first sums with the other ranks within 400 ms", 3},
    {"HangsInJoin", Fault::kHangsInJoin, 2000, 60000, " did not answer the other ranks within 2000 ms", 2},
};
INSTANTIATE_TEST_SUITE_P(Each, JoinFaults, ::testing::ValuesIn(kFaults),
                         [](const auto& info) { return std::string(info.param.name); });

// A join that keeps no time itself, and meets nobody.
TEST(JoinRanksTest, OneThatNeverComesBackFromItsJoinIsNamed) {
  const auto scene = std::make_shared<Scene>();
  RankThreadsOptions threads;
  threads.sizes = {kRanks};
  threads.timeout = threads.least_start = milliseconds(300);
  threads.join = [scene](Ranks* ranks, const AnnounceFn&) {
    if (ranks->topology.rank == 2) scene->Hang();
    return Status::Ok();
  };
  const auto executor = MakeThreadsExecutor(Source(), Options({"", {kRanks}}), threads, nullptr);
  EXPECT_EQ(executor.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(executor.status().message(), "rank 2 (tp 2, pp 0) did not join the other ranks within 2900 ms");
  scene->End();
}

// As in a call of NCCL, which returns nowhere when one of them hangs.
TEST(JoinRanksTest, AllThatNeverComeBackAreNamed) {
  const auto scene = std::make_shared<Scene>();
  scene->fault = Fault::kAllHangInConnect;
  const auto executor = Start(scene, milliseconds(300), seconds(60));
  EXPECT_EQ(executor.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(
      executor.status().message(),
      "rank 0 (tp 0, pp 0), rank 1 (tp 1, pp 0) and rank 2 (tp 2, pp 0) did not join the other ranks within 2900 ms");
  scene->End();
}

// Neither to join nor to load: the timeout is that of steps.
TEST(JoinRanksTest, AStartMayTakeLongerThanAStep) {
  RankThreadsOptions threads;
  threads.sizes = {kRanks};
  threads.timeout = milliseconds(50);
  const auto late = [](const Ranks& ranks) {
    if (ranks.topology.rank == 1) std::this_thread::sleep_for(milliseconds(300));  // a slow device
    return ranks.tensor->Barrier({});
  };
  threads.join = [late](Ranks* ranks, const AnnounceFn&) { return late(*ranks); };
  threads.make_runner = [late](ModelSource s, const RunnerOptions& o,
                               PhaseSeconds* p) -> Result<std::unique_ptr<StepRunner>> {
    FASTLLM_RETURN_IF_ERROR(late(o.ranks));
    return MakeStepRunner(std::move(s), o, p);
  };
  const auto executor = MakeThreadsExecutor(Source(), Options({"", {kRanks}}), threads, nullptr);
  EXPECT_TRUE(executor.ok()) << executor.status().ToString();
}

// An abort reaches what has been announced, whether before it or after.
TEST(JoinRanksTest, AnAbortReachesWhatIsAnnounced) {
  const auto scene = std::make_shared<Scene>();
  std::mutex mutex;
  std::condition_variable changed;
  int announced = 0;
  std::vector<std::shared_ptr<OnBoard>> groups(kRanks);
  RankThreadsOptions threads;
  threads.sizes = {kRanks};
  threads.join = [&](Ranks* ranks, const AnnounceFn& announce) {
    const int32_t rank = ranks->topology.rank;
    groups[rank] = std::make_shared<OnBoard>(ranks->host, scene, std::make_shared<Board>(scene, rank));
    std::unique_lock lock(mutex);
    if (rank == 1) {  // fails when the first has announced; the last does so after that
      changed.wait(lock, [&] { return announced == 1; });
      return Status::Unavailable("no such device");
    }
    if (rank == 2) {
      lock.unlock();
      while (ranks->host->broken().ok()) std::this_thread::yield();
      lock.lock();
    }
    announce(groups[rank]);
    ++announced;
    changed.notify_all();
    lock.unlock();
    while (groups[rank]->broken().ok()) std::this_thread::yield();
    return groups[rank]->broken();
  };
  const auto executor = MakeThreadsExecutor(Source(), Options({"", {kRanks}}), threads, nullptr);
  EXPECT_EQ(executor.status().message(), "rank 1 (tp 1, pp 0): no such device");
  for (const int32_t rank : {0, 2}) {
    EXPECT_EQ(groups[rank]->broken().message(), "rank 1 (tp 1, pp 0): no such device");
  }
}

}  // namespace
}  // namespace fastllm::runtime
