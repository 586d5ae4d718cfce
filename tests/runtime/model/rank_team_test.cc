// Ranks that are driven call by call: the first error ends the others' waits, and one that hangs keeps nobody.
#include "runtime/runner/rank_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "tests/runtime/model/peer_support.h"

namespace fastllm::runtime {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int32_t kRanks = 3;

std::unique_ptr<RankTeam> Team() {
  auto hub = MemoryHub::Create({kRanks}, seconds(60));
  EXPECT_TRUE(hub.ok());
  return std::make_unique<RankTeam>(std::move(hub).value(), kRanks);
}

// A group on a device: an abort is all that ends its waits.
class Stuck : public testing::Counting {
 public:
  explicit Stuck(testing::Ptr inner) : Counting(std::move(inner)) {}
  void Abort(const Status& why) override {
    if (!told.exchange(true)) aborted_.set_value(why);
  }
  Status Wait() { return aborted_.get_future().get(); }

  std::atomic<bool> told{false};

 private:
  std::promise<Status> aborted_;
};

TEST(RankTeamTest, AllRanksWorkSideBySide) {
  const auto team = Team();
  std::atomic<int> sum{0};
  for (int round = 0; round < 3; ++round) {
    const auto work = [&](int32_t rank) {
      sum += rank + 1;
      return team->hub().RanksOf(rank).tensor->Barrier({});
    };
    ASSERT_TRUE(team->Run(work, seconds(60)).ok());
  }
  EXPECT_EQ(sum, 3 * 6);
}

TEST(RankTeamTest, TheFirstErrorEndsWaitsInMemoryAndOnDevices) {
  const auto team = Team();
  const auto work = [&team, announce = team->announcer()](int32_t rank) -> Status {
    const Ranks ranks = team->hub().RanksOf(rank);
    if (rank == 0) return ranks.tensor->Barrier({});
    if (rank == 2) return Status::Internal("rank 2 is on fire");
    const auto stuck = std::make_shared<Stuck>(ranks.tensor);
    announce(stuck);
    return stuck->Wait();
  };
  EXPECT_EQ(team->Run(work, seconds(60)).message(), "rank 2 is on fire");
}

// Those that wait for the one that hangs are freed; the team ends without it.
TEST(RankTeamTest, OneThatHangsIsNamedAndLeftBehind) {
  const auto gate = std::make_shared<std::promise<void>>();
  const auto gone = std::make_shared<std::promise<void>>();
  {
    const auto team = Team();
    std::vector<Ranks> all;
    for (int32_t rank = 0; rank < kRanks; ++rank) all.push_back(team->hub().RanksOf(rank));
    const auto work = [=, announce = team->announcer()](int32_t rank) -> Status {
      if (rank == 1) {
        gate->get_future().wait();
        gone->set_value();
        return Status::Ok();
      }
      if (rank == 2) return all[rank].tensor->Barrier({});
      const auto stuck = std::make_shared<Stuck>(all[rank].tensor);
      announce(stuck);
      return stuck->Wait();
    };
    const Status status = team->Run(work, milliseconds(200));
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
    EXPECT_EQ(status.message(), "rank 1 (tp 1, pp 0) did not come back within 200 ms");
    int runs = 0;
    const auto later = [&runs](int32_t) {
      ++runs;
      return Status::Ok();
    };
    EXPECT_EQ(team->Run(later, seconds(60)).message(), status.message());
    EXPECT_EQ(runs, 0);
  }
  gate->set_value();
  gone->get_future().wait();
}

// However long the work itself may take.
TEST(RankTeamTest, AfterAnErrorOneThatHangsIsLeftBehindSoon) {
  const auto gate = std::make_shared<std::promise<void>>();
  const auto gone = std::make_shared<std::promise<void>>();
  {
    const auto team = Team();
    const auto work = [=](int32_t rank) -> Status {
      if (rank == 0) return Status::Internal("rank 0 is on fire");
      if (rank == 1) return Status::Ok();
      gate->get_future().wait();
      gone->set_value();
      return Status::Ok();
    };
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(team->Run(work, seconds(600), milliseconds(100)).message(), "rank 0 is on fire");
    EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(30));
    EXPECT_EQ(team->Run(work, seconds(600)).message(), "rank 0 is on fire");
  }
  gate->set_value();
  gone->get_future().wait();
}

// Work that takes its time, and that nobody can end.
TEST(RankTeamTest, AfterAnErrorWorkThatEndsIsWaitedFor) {
  const auto team = Team();
  std::atomic<int> back{0};
  const auto work = [&](int32_t rank) -> Status {
    if (rank == 0) return Status::Internal("rank 0 is on fire");
    while (team->hub().broken().ok()) std::this_thread::yield();
    ++back;
    return Status::Ok();
  };
  EXPECT_EQ(team->Run(work, milliseconds(60000), seconds(60)).message(), "rank 0 is on fire");
  EXPECT_EQ(back, 2);
}

// Without waits that the hub does not see, the message follows who waits for whom.
TEST(RankTeamTest, TheMessageNamesTheOneThatTheOthersWaitFor) {
  const auto gate = std::make_shared<std::promise<void>>();
  const auto gone = std::make_shared<std::promise<void>>();
  {
    const auto team = Team();
    std::vector<Ranks> all;
    for (int32_t rank = 0; rank < kRanks; ++rank) all.push_back(team->hub().RanksOf(rank));
    const auto work = [=](int32_t rank) -> Status {
      if (rank != 2) return all[rank].tensor->Barrier({});
      gate->get_future().wait();
      gone->set_value();
      return Status::Ok();
    };
    EXPECT_EQ(team->Run(work, milliseconds(200)).message(), "rank 2 (tp 2, pp 0) did not come back within 200 ms");
  }
  gate->set_value();
  gone->get_future().wait();
}

}  // namespace
}  // namespace fastllm::runtime
