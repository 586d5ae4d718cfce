// A gate in front of calls that may hang: closing it waits for none of them, and what ends them comes once.
#include "runtime/comm/call_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

namespace fastllm::runtime {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Status kWhy = Status::Unavailable("rank 1 has failed");

TEST(CallGateTest, CallsPassUntilItIsClosed) {
  int ends = 0;
  {
    CallGate gate;
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(gate.Enter().ok());
      gate.Leave();
    }
    EXPECT_TRUE(gate.closed().ok());
    gate.Close(kWhy, [&ends] { ++ends; });
    gate.Close(Status::Internal("later"), [&ends] { ends += 10; });
    EXPECT_EQ(gate.Enter().message(), kWhy.message());
    EXPECT_EQ(gate.closed().message(), kWhy.message());
  }
  EXPECT_EQ(ends, 1);
}

// The call returns only when it is ended, as one that waits for another rank does.
TEST(CallGateTest, ClosingDoesNotWaitForACallThatHangs) {
  CallGate gate(milliseconds(20));
  std::promise<void> entered, ended;
  std::jthread caller([&] {
    ASSERT_TRUE(gate.Enter().ok());
    entered.set_value();
    ended.get_future().wait();
    gate.Leave();
  });
  entered.get_future().wait();
  gate.Close(kWhy, [&ended] { ended.set_value(); });  // would never return if it waited
  EXPECT_EQ(gate.closed().message(), kWhy.message());
  caller.join();
  EXPECT_FALSE(gate.Enter().ok());
}

// What a call works on is not taken away while it comes to its end by itself.
TEST(CallGateTest, TheEndWaitsForACallThatReturns) {
  std::vector<std::string> order;
  {
    CallGate gate(seconds(60));
    std::promise<void> entered, closed;
    std::jthread caller([&] {
      ASSERT_TRUE(gate.Enter().ok());
      entered.set_value();
      closed.get_future().wait();
      order.push_back("call");
      gate.Leave();
    });
    entered.get_future().wait();
    gate.Close(kWhy, [&order] { order.push_back("end"); });
    closed.set_value();
  }
  EXPECT_EQ(order, (std::vector<std::string>{"call", "end"}));
}

// By the thread that calls: after a call that has failed.
TEST(CallGateTest, TheCallerMayCloseIt) {
  std::atomic<bool> ended{false};
  {
    CallGate gate(seconds(60));
    ASSERT_TRUE(gate.Enter().ok());
    gate.Close(kWhy, [&ended] { ended = true; });
    gate.Leave();
  }
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace fastllm::runtime
