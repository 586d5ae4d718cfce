// The threads of the CPU ops.
#include "ops/cpu/team.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "ops/cpu/parallel.h"
#include "ops/table/threads.h"

namespace fastllm::ops::cpu {
namespace {

constexpr int64_t kMuch = int64_t{1} << 40;  // work that pays for waking every thread

TEST(Team, EveryMemberRunsOnce) {
  for (const int32_t count : {1, 2, 3, 8}) {
    for (int round = 0; round < 200; ++round) {
      std::vector<int> calls(count);
      Team::OfThisThread().Run(count, kMuch, [&](const Team::Member& m) {
        EXPECT_EQ(m.count(), count);
        ++calls[m.index()];
      });
      for (const int c : calls) ASSERT_EQ(c, 1);
    }
  }
}

TEST(Team, SmallRegionsRunWhetherHelpersSleepOrNot) {
  std::vector<int64_t> items(1000);
  for (int round = 0; round < 2000; ++round) {
    ParallelRanges(1000, 10000, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++items[i];
    });
    if (round % 500 == 0) Team::OfThisThread().Wake(4);
  }
  for (const int64_t n : items) ASSERT_EQ(n, 2000);
}

TEST(Team, BarrierSeparatesThePhases) {
  constexpr int32_t kThreads = 4;
  for (int round = 0; round < 300; ++round) {
    std::vector<int> first(kThreads), sums(kThreads);
    Team::OfThisThread().Run(kThreads, kMuch, [&](const Team::Member& m) {
      for (int phase = 1; phase <= 3; ++phase) {
        first[m.index()] = phase;
        m.Barrier();
        sums[m.index()] = std::accumulate(first.begin(), first.end(), 0);
        m.Barrier();
        EXPECT_EQ(sums[m.index()], phase * kThreads);
      }
    });
  }
}

TEST(Team, ARegionInsideARegionRunsOnItsThread) {
  std::atomic<int> inner{0};
  Team::OfThisThread().Run(3, kMuch, [&](const Team::Member& outer) {
    if (outer.index() != 0) return;
    Team::OfThisThread().Run(3, kMuch, [&](const Team::Member& m) {
      EXPECT_EQ(m.count(), 1);
      m.Barrier();
      ++inner;
    });
  });
  EXPECT_EQ(inner, 1);
}

TEST(Team, ItemsAreTakenOnce) {
  std::vector<std::atomic<int>> taken(500);
  ParallelItems(500, kMuch, 3, [&](int64_t i, int32_t thread) {
    EXPECT_LT(thread, 3);
    ++taken[i];
  });
  for (const auto& t : taken) ASSERT_EQ(t, 1);
}

TEST(Team, AForkedChildGetsThreadsOfItsOwn) {
  std::atomic<int> runs{0};
  Team::OfThisThread().Run(2, kMuch, [&](const Team::Member&) { ++runs; });
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> in_child{0};
    Team::OfThisThread().Run(2, kMuch, [&](const Team::Member&) { ++in_child; });
    _exit(in_child == 2 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  Team::OfThisThread().Run(2, kMuch, [&](const Team::Member&) { ++runs; });
  EXPECT_EQ(runs, 4);
}

TEST(Team, EachThreadHasItsOwnAndEndsItWithItself) {
  std::vector<std::thread> callers;
  std::atomic<int64_t> total{0};
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        Team::OfThisThread().Run(2, kMuch, [&](const Team::Member&) { ++total; });
      }
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(total, 4 * 100 * 2);
}

TEST(Team, PinnedThreadsHaveACoreEach) {
  std::thread([] {  // a thread of its own: the others of this program stay free
    cpu_set_t allowed;
    ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    const int32_t count = CPU_COUNT(&allowed);
    std::vector<cpu_set_t> masks(static_cast<size_t>(count));
    Team::OfThisThread().Run(count, kMuch, [](const Team::Member&) {});  // helpers that are there before
    ASSERT_TRUE(PinThreads(count).ok());
    Team::OfThisThread().Run(count, kMuch, [&](const Team::Member& m) {
      EXPECT_EQ(sched_getaffinity(0, sizeof(cpu_set_t), &masks[m.index()]), 0);
    });
    cpu_set_t all;
    CPU_ZERO(&all);
    for (const cpu_set_t& mask : masks) {
      EXPECT_EQ(CPU_COUNT(&mask), 1);
      CPU_OR(&all, &all, &mask);
    }
    EXPECT_TRUE(CPU_EQUAL(&all, &allowed));
  })
      .join();
}

TEST(Team, PinningMoreThreadsThanCoresIsRefused) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  const Status status = PinThreads(CPU_COUNT(&allowed) + 1);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("may use " + std::to_string(CPU_COUNT(&allowed))), std::string::npos);
  EXPECT_GE(PhysicalCores(), 1);
  EXPECT_LE(PhysicalCores(), CPU_COUNT(&allowed));
}

}  // namespace
}  // namespace fastllm::ops::cpu
