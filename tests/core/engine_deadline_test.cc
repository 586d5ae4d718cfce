#include <gtest/gtest.h>

#include <memory>

#include "engine_fixture.h"

namespace fastllm {
namespace {

TEST(EngineDeadline, ARequestWhoseTimeIsUpEndsWithAnError) {
  EngineCore engine(Sched(), Kv(), std::make_unique<FakeExecutor>(CountUp), Letters());
  auto late = MakeRequest(1, {0}, 5);
  late->arrival_ns = 1000000;  // 1 ms after the steady clock's start
  late->timeout_ms = 1;
  ASSERT_TRUE(engine.Add(late).ok());
  ASSERT_TRUE(engine.Add(MakeRequest(2, {0}, 3)).ok());
  auto outcomes = Collect(&engine, 2);
  EXPECT_EQ(outcomes[1].last.finish_reason, FinishReason::kError);
  EXPECT_NE(outcomes[1].last.error.find("not finished after"), std::string::npos) << outcomes[1].last.error;
  EXPECT_TRUE(outcomes[1].ids.empty());
  EXPECT_EQ(outcomes[2].ids, (Ids{1, 2, 3}));
}

}  // namespace
}  // namespace fastllm
