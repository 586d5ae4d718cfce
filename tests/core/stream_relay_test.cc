#include "core/stream/stream_relay.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/stream/json_text.h"
#include "fake_engine.h"

namespace fastllm {
namespace {

std::string Json(std::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

TEST(JsonText, EscapesWhatJsonMustAndNothingElse) {
  EXPECT_EQ(Json(""), "\"\"");
  EXPECT_EQ(Json("plain \u00e9\u4e2d\U0001F600 \x7f"), "\"plain \u00e9\u4e2d\U0001F600 \x7f\"");
  EXPECT_EQ(Json("a\"b\\c\b\f\n\r\td"), R"("a\"b\\c\b\f\n\r\td")");
  EXPECT_EQ(Json(std::string("\0\x01\x1f", 3)), R"("\u0000\u0001\u001f")");
}

// Two ends of a connection; the relay writes to `ours`.
struct Connection {
  Connection() {
    std::array<int, 2> fds;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds.data()), 0);
    ours = UniqueFd(fds[0]);
    client = UniqueFd(fds[1]);
  }
  // Waits for `size` bytes.
  std::string Read(size_t size) const {
    std::string data(size, 0);
    size_t done = 0;
    while (done < size) {
      const ssize_t got = read(client.get(), data.data() + done, size - done);
      if (got <= 0) break;
      done += static_cast<size_t>(got);
    }
    data.resize(done);
    return data;
  }
  // Whether all is read.
  bool IsEmpty() const {
    char c = 0;
    return recv(client.get(), &c, 1, MSG_DONTWAIT | MSG_PEEK) < 0;
  }
  UniqueFd ours, client;
};

RequestDelta Text(uint64_t id, std::string text, int32_t index = 0) {
  RequestDelta delta;
  delta.request_id = id;
  delta.index = index;
  delta.token_ids = {1, 2};
  delta.text = std::move(text);
  return delta;
}

RequestDelta Last(uint64_t id, std::string text) {
  RequestDelta delta = Text(id, std::move(text));
  delta.finish_reason = FinishReason::kLength;
  return delta;
}

RelayedStream StreamOf(const Connection& connection, uint64_t id, std::string begin = "", bool chunked = false) {
  return {connection.ours.get(), chunked, {{id, 0, "<", ">", 0, 1}}, std::move(begin)};
}

std::vector<RequestDelta> WaitForNews(StreamRelay* relay) {
  pollfd watched{relay->event_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&watched, 1, 60000), 1);
  return relay->Drain();
}

class StreamRelayTest : public testing::Test {
 protected:
  FakeEngine engine_;
  StreamRelay relay_{&engine_, {1.0, 100.0}};
  Connection connection_;
};

TEST_F(StreamRelayTest, WritesTheTextOfAStreamAndLeavesItsEndToTheHost) {
  const uint64_t number = relay_.Attach(StreamOf(connection_, 7, "begin")).value();
  EXPECT_EQ(connection_.Read(5), "begin");
  engine_.Say({Text(7, "a\n"), Text(8, "not in a stream")});
  EXPECT_EQ(connection_.Read(7), "<\"a\\n\">");
  std::vector<RequestDelta> news = WaitForNews(&relay_);
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].text, "not in a stream");
  engine_.Say({Last(7, "end")});
  news = WaitForNews(&relay_);
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].text, "end");
  const RelayedWork work = relay_.Detach(number);
  EXPECT_EQ(work.unsent, "");
  EXPECT_EQ(work.tokens, 2);
  EXPECT_EQ(work.bytes, 12);
  ASSERT_EQ(work.last_times.size(), 1u);
  EXPECT_GT(work.last_times[0], 0);
  EXPECT_TRUE(connection_.IsEmpty());
  EXPECT_EQ(relay_.totals().at(1).tokens, 2);
  EXPECT_EQ(relay_.totals().at(1).events, 1);
  EXPECT_EQ(relay_.totals().at(0).tokens, 0);
}

RelayedStream StreamWithEnd(const Connection& connection, uint64_t id) {
  RelayedStream stream = StreamOf(connection, id);
  stream.outputs[0].end = {",why=", "none,why=", ",stop=", ";"};
  return stream;
}

TEST_F(StreamRelayTest, WritesTheEndOfAnOutputThatSaysHow) {
  const uint64_t number = relay_.Attach(StreamWithEnd(connection_, 7)).value();
  RequestDelta last = Last(7, "bye");
  last.num_cached_tokens = 5;
  engine_.Say({Text(7, "a"), last});
  EXPECT_EQ(connection_.Read(33), "<\"a\"><\"bye\",why=length,stop=null;");
  const std::vector<RequestDelta> news = WaitForNews(&relay_);
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].finish_reason, FinishReason::kLength);
  EXPECT_EQ(news[0].num_cached_tokens, 5);
  EXPECT_EQ(news[0].text, "");  // it has gone out
  EXPECT_TRUE(news[0].token_ids.empty());
  const RelayedWork work = relay_.Detach(number);
  EXPECT_EQ(work.tokens, 4);
  EXPECT_EQ(work.ended, std::vector<bool>{true});
  EXPECT_EQ(relay_.totals().at(1).events, 2);
}

TEST_F(StreamRelayTest, AnEndWithoutTextHasItsOwnForm) {
  ASSERT_TRUE(relay_.Attach(StreamWithEnd(connection_, 7)).ok());
  ASSERT_TRUE(relay_.Attach(StreamWithEnd(connection_, 8)).ok());
  RequestDelta by_id = Last(7, "");
  by_id.finish_reason = FinishReason::kStop;
  by_id.stop_reason = 42;
  RequestDelta by_text = Last(8, "x");
  by_text.finish_reason = FinishReason::kStop;
  by_text.stop_reason = std::string("\"\n");
  engine_.Say({by_id, by_text});
  EXPECT_EQ(connection_.Read(48), "none,why=stop,stop=42;<\"x\",why=stop,stop=\"\\\"\\n\";");
  EXPECT_TRUE(connection_.IsEmpty());
}

TEST_F(StreamRelayTest, ErrorsAbortsAndLogprobsAtTheEndAreTheHosts) {
  const uint64_t number = relay_.Attach(StreamWithEnd(connection_, 7)).value();
  ASSERT_TRUE(relay_.Attach(StreamWithEnd(connection_, 8)).ok());
  ASSERT_TRUE(relay_.Attach(StreamWithEnd(connection_, 9)).ok());
  RequestDelta error = Last(7, "a"), abort = Last(8, "b"), probable = Last(9, "c");
  error.finish_reason = FinishReason::kError;
  abort.finish_reason = FinishReason::kAbort;
  probable.logprobs = {{TokenLogprob{1, -1.0f, 1}}};
  engine_.Say({error, abort, probable});
  std::string texts;
  while (texts.size() < 3) {
    for (const RequestDelta& delta : WaitForNews(&relay_)) texts += delta.text;
  }
  EXPECT_EQ(texts, "abc");
  EXPECT_EQ(relay_.Detach(number).ended, std::vector<bool>{false});
  EXPECT_TRUE(connection_.IsEmpty());
}

TEST_F(StreamRelayTest, AnEndThatTheSocketDoesNotTakeIsToldAndGivenBack) {
  const uint64_t number = relay_.Attach(StreamWithEnd(connection_, 7)).value();
  connection_.client = UniqueFd();
  engine_.Say({Last(7, "x")});
  std::vector<RequestDelta> news;
  while (news.empty() || news.back().finish_reason == FinishReason::kNone) {
    for (RequestDelta& delta : WaitForNews(&relay_)) news.push_back(std::move(delta));
  }
  const RelayedWork work = relay_.Detach(number);
  EXPECT_EQ(work.unsent, "<\"x\",why=length,stop=null;");
  EXPECT_EQ(work.ended, std::vector<bool>{true});
}

TEST_F(StreamRelayTest, ChunksCarryTheirSize) {
  ASSERT_TRUE(relay_.Attach(StreamOf(connection_, 7, "0123456789abcdef", true)).ok());
  EXPECT_EQ(connection_.Read(22), "10\r\n0123456789abcdef\r\n");
  engine_.Say({Text(7, "x")});
  EXPECT_EQ(connection_.Read(10), "5\r\n<\"x\">\r\n");
}

TEST_F(StreamRelayTest, WhatTheHostHasNotTakenYetIsWrittenInOrder) {
  engine_.Say({Text(7, "1")});
  pollfd watched{relay_.event_fd(), POLLIN, 0};
  ASSERT_EQ(poll(&watched, 1, 60000), 1);  // it is the host's now, and the host takes the stream elsewhere
  ASSERT_TRUE(relay_.Attach(StreamOf(connection_, 7, "0")).ok());
  engine_.Say({Text(7, "2")});
  EXPECT_EQ(connection_.Read(11), "0<\"1\"><\"2\">");
  EXPECT_TRUE(relay_.Drain().empty());
}

TEST_F(StreamRelayTest, OutputsOfOneRequestShareAConnection) {
  RelayedStream stream{connection_.ours.get(), false, {{7, 0, "0:", "", 0, 0}, {7, 1, "1:", "", 0, 0}}, ""};
  const uint64_t number = relay_.Attach(std::move(stream)).value();
  engine_.Say({Text(7, "a", 0), Text(7, "b", 1)});
  EXPECT_EQ(connection_.Read(10), "0:\"a\"1:\"b\"");
  EXPECT_EQ(relay_.Detach(number).tokens, 4);
}

TEST_F(StreamRelayTest, TextThatIsHeldBackMakesNoEvent) {
  const uint64_t number = relay_.Attach(StreamOf(connection_, 7)).value();
  engine_.Say({Text(7, "")});
  engine_.Say({Text(7, "x")});
  EXPECT_EQ(connection_.Read(5), "<\"x\">");
  EXPECT_EQ(relay_.Detach(number).tokens, 4);
}

TEST_F(StreamRelayTest, LogprobsAreTheHosts) {
  ASSERT_TRUE(relay_.Attach(StreamOf(connection_, 7)).ok());
  RequestDelta delta = Text(7, "x");
  delta.logprobs = {{TokenLogprob{1, -1.0f, 1}}};
  engine_.Say({delta});
  EXPECT_EQ(WaitForNews(&relay_).at(0).text, "x");
  EXPECT_TRUE(connection_.IsEmpty());
}

TEST_F(StreamRelayTest, AFullSocketGivesTheStreamBackWithoutLosingAByte) {
  const uint64_t number = relay_.Attach(StreamOf(connection_, 7)).value();
  const std::string text(8 << 20, 'x');
  engine_.Say({Text(7, text)});
  std::vector<RequestDelta> news = WaitForNews(&relay_);
  ASSERT_EQ(news.size(), 1u);
  EXPECT_TRUE(news[0].token_ids.empty());  // only a sign
  engine_.Say({Text(7, "later")});
  news = WaitForNews(&relay_);
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].text, "later");
  const RelayedWork work = relay_.Detach(number);
  EXPECT_GT(work.unsent.size(), 0u);
  std::string seen = connection_.Read(text.size() + 4 - work.unsent.size());
  EXPECT_TRUE(connection_.IsEmpty());
  EXPECT_EQ(seen + work.unsent, "<\"" + text + "\">");
}

TEST_F(StreamRelayTest, ABrokenConnectionGivesTheStreamBack) {
  const uint64_t number = relay_.Attach(StreamOf(connection_, 7)).value();
  connection_.client = UniqueFd();
  engine_.Say({Text(7, "x")});
  EXPECT_EQ(WaitForNews(&relay_).size(), 1u);
  EXPECT_EQ(relay_.Detach(number).unsent, "<\"x\">");
}

TEST_F(StreamRelayTest, WritesToItsOwnDuplicate) {
  ASSERT_TRUE(relay_.Attach(StreamOf(connection_, 7)).ok());
  connection_.ours = UniqueFd();  // another file may have this number now
  engine_.Say({Text(7, "x")});
  EXPECT_EQ(connection_.Read(5), "<\"x\">");
}

TEST_F(StreamRelayTest, RefusesWhatItCannotDo) {
  EXPECT_EQ(relay_.Attach({-1, false, {{7, 0, "", "", 0, 0}}, ""}).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(relay_.Attach({connection_.ours.get(), false, {}, ""}).status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(relay_.Attach(StreamOf(connection_, 7)).ok());
  EXPECT_EQ(relay_.Attach(StreamOf(connection_, 7)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(relay_.Attach({connection_.ours.get(), false, {{8, 0, "", "", 0, 64}}, ""}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(relay_.Detach(99).tokens, 0);
}

TEST_F(StreamRelayTest, GapsAreCountedByTheirEdges) {
  const double long_ago = 1;  // the clock counts from the start of the machine
  RelayedStream stream{connection_.ours.get(), false, {{7, 0, "", "", 0, 0}, {7, 1, "", "", long_ago, 0}}, ""};
  const uint64_t number = relay_.Attach(std::move(stream)).value();
  engine_.Say({Text(7, "a", 0)});
  EXPECT_EQ(connection_.Read(3), "\"a\"");
  engine_.Say({Text(7, "b", 0)});
  EXPECT_EQ(connection_.Read(3), "\"b\"");
  EXPECT_GT(relay_.Detach(number).last_times[0], 0);
  const RelayTotals totals = relay_.totals().at(0);
  ASSERT_EQ(totals.gaps.size(), 3u);
  EXPECT_EQ(totals.gaps[0] + totals.gaps[1] + totals.gaps[2], 1);  // the first had nothing before it
}

// A pace of an hour, however it is made up.
class StreamRelayPace : public testing::TestWithParam<RelayPace> {};
INSTANTIATE_TEST_SUITE_P(Pace, StreamRelayPace,
                         testing::Values(RelayPace{std::chrono::hours(1), {}}, RelayPace{{}, std::chrono::hours(1)}));

TEST_P(StreamRelayPace, NewsWithinARoundIsOneEvent) {
  FakeEngine engine;
  StreamRelay relay(&engine, {}, GetParam());
  Connection connection;
  ASSERT_TRUE(relay.Attach(StreamOf(connection, 7)).ok());
  engine.Say({Text(7, "a")});
  EXPECT_EQ(connection.Read(5), "<\"a\">");
  engine.Say({Text(7, "b")});
  engine.Say({Text(7, "c")});
  EXPECT_TRUE(connection.IsEmpty());  // and the end of the relay does not wait for the hour
}

TEST_F(StreamRelayTest, TheEndOfTheEngineIsSeen) {
  engine_.Fail("gone");
  EXPECT_TRUE(WaitForNews(&relay_).empty());
}

// Every token of many streams arrives once and in order, while hosts take streams and give them back.
TEST(StreamRelayStress, NothingIsLostOrTurnedRound) {
  constexpr uint64_t kStreams = 8;
  constexpr int kEvents = 2000;
  FakeEngine engine;
  StreamRelay relay(&engine, {});
  std::vector<Connection> connections(kStreams);
  std::vector<std::string> seen(kStreams);
  std::thread speaker([&engine] {
    for (int n = 0; n < kEvents; ++n) {
      std::vector<RequestDelta> deltas;
      for (uint64_t id = 1; id <= kStreams; ++id) {
        std::string text = std::to_string(n) + ",";
        deltas.push_back(n + 1 < kEvents ? Text(id, std::move(text)) : Last(id, std::move(text)));
      }
      engine.Say(std::move(deltas));
    }
  });
  // What the host reads off a socket stands for what it would write to it.
  const auto take = [&](uint64_t id) {
    while (!connections[id - 1].IsEmpty()) seen[id - 1] += connections[id - 1].Read(1);
  };
  std::vector<uint64_t> numbers(kStreams + 1);
  std::vector<bool> ended(kStreams + 1);
  size_t left = kStreams;
  while (left > 0) {
    for (uint64_t id = 1; id <= kStreams; ++id) {
      if (ended[id]) continue;
      numbers[id] = relay.Attach({connections[id - 1].ours.get(), false, {{id, 0, "", "", 0, 0}}, ""}).value();
    }
    for (uint64_t id = 1; id <= kStreams; ++id) {
      if (ended[id]) continue;
      const RelayedWork work = relay.Detach(numbers[id]);
      take(id);
      seen[id - 1] += work.unsent;
    }
    for (const RequestDelta& delta : relay.Drain()) {
      if (delta.token_ids.empty()) continue;
      take(delta.request_id);
      seen[delta.request_id - 1] += Json(delta.text);
      if (delta.finish_reason == FinishReason::kNone) continue;
      ended[delta.request_id] = true;
      --left;
    }
  }
  speaker.join();
  std::string wanted;
  for (int n = 0; n < kEvents; ++n) wanted += std::to_string(n) + ",";
  for (std::string& text : seen) {
    std::erase(text, '"');
    EXPECT_EQ(text, wanted);
  }
}

}  // namespace
}  // namespace fastllm
