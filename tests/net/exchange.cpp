// Tests of what handlers hold, with a loop that runs when the test says so and an end that notes what it is
// told.
#include "pom/net/exchange.h"

#include <gtest/gtest.h>
#include <thread>

namespace pom::net {
namespace {

class StepLoop final : public Loop {
 public:
  void post(std::function<void()> call) override {
    const std::lock_guard guard(mutex_);
    calls_.push_back(std::move(call));
  }
  // What waits holds the line, and the line the loop.
  void clear() {
    std::deque<std::function<void()>> dropped;
    const std::lock_guard guard(mutex_);
    dropped.swap(calls_);
  }
  void run() {
    while (true) {
      std::function<void()> call;
      {
        const std::lock_guard guard(mutex_);
        if (calls_.empty()) return;
        call = std::move(calls_.front());
        calls_.pop_front();
      }
      call();
    }
  }

 private:
  std::mutex mutex_;
  std::deque<std::function<void()>> calls_;
};

class NotingEnd final : public LineEnd {
 public:
  bool serves(const Line&) const override { return serving; }
  void answer(HttpResponse response) override { said += "answer " + response.body + "; "; }
  void answer_dropped() override { said += "dropped; "; }
  void begin_stream(int status, Headers) override { said += "stream " + std::to_string(status) + "; "; }
  void pump_stream() override { ++pumps; }
  bool serving = true;
  std::string said;
  int pumps = 0;
};

struct Fixture {
  explicit Fixture(bool head_only = false, std::size_t most = 10) {
    line = std::make_shared<Line>(loop, end, head_only, most);
    exchange = make_exchange(line, std::make_shared<const HttpRequest>());
  }
  ~Fixture() {
    exchange.reset();
    loop->clear();
  }
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;

  std::string said() {
    loop->run();
    return std::exchange(end->said, {});
  }
  std::shared_ptr<StepLoop> loop = std::make_shared<StepLoop>();
  std::shared_ptr<NotingEnd> end = std::make_shared<NotingEnd>();
  std::shared_ptr<Line> line;
  std::shared_ptr<Exchange> exchange;
};

Bytes bytes(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

TEST(Exchange, TheFirstAnswerCounts) {
  Fixture f;
  f.exchange->answer({.body = "1"});
  f.exchange->answer({.body = "2"});
  EXPECT_FALSE(f.exchange->stream(200, {})->write(bytes("a")));
  f.exchange.reset();
  EXPECT_EQ(f.said(), "answer 1; ");
}

TEST(Exchange, DroppedWithoutAnAnswer) {
  Fixture f;
  f.exchange.reset();
  EXPECT_EQ(f.said(), "dropped; ");
}

TEST(Exchange, NobodyIsToldOfAnAnswerThatCameTooLate) {
  Fixture f;
  f.end->serving = false;
  f.exchange->answer({.body = "1"});
  EXPECT_EQ(f.said(), "");
  f.end.reset();
  f.loop->run();
}

TEST(Exchange, GoneIsToldOnceToAll) {
  Fixture f;
  int calls = 0;
  f.exchange->on_gone([&] { ++calls; });
  f.exchange->on_gone([&] { ++calls; });
  for (const auto& call : f.line->set_gone()) call();
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(f.exchange->gone());
  EXPECT_TRUE(f.line->set_gone().empty());
  f.exchange->on_gone([&] { ++calls; });
  EXPECT_EQ(calls, 2);  // on the server's thread
  f.loop->run();
  EXPECT_EQ(calls, 3);
}

TEST(Exchange, GoneIsNotToldAfterTheEnd) {
  Fixture f;
  int calls = 0;
  auto held = std::make_shared<int>();
  f.exchange->on_gone([&, held] { ++calls; });
  f.line->set_done();
  EXPECT_EQ(held.use_count(), 1);  // what the callback held is let go
  EXPECT_TRUE(f.line->set_gone().empty());
  f.exchange->on_gone([&] { ++calls; });
  f.loop->run();
  EXPECT_EQ(calls, 0);
  EXPECT_FALSE(f.exchange->gone());
}

TEST(BodyStream, PiecesInOrderAndAnEnd) {
  Fixture f;
  const auto stream = f.exchange->stream(200, {});
  EXPECT_TRUE(stream->write(bytes("abc")));
  EXPECT_TRUE(stream->write(bytes("")));
  EXPECT_TRUE(stream->write(bytes("de")));
  EXPECT_EQ(stream->waiting_bytes(), 5u);
  EXPECT_EQ(f.said(), "stream 200; ");
  EXPECT_EQ(f.end->pumps, 1);  // one word for many writes
  auto portion = f.line->take(2);
  ASSERT_EQ(portion.pieces.size(), 1u);
  EXPECT_EQ(*portion.pieces[0], "abc");
  EXPECT_FALSE(portion.ended);
  stream->end();
  EXPECT_FALSE(stream->write(bytes("f")));
  portion = f.line->take(100);
  ASSERT_EQ(portion.pieces.size(), 1u);
  EXPECT_TRUE(portion.ended);
  EXPECT_FALSE(f.line->aborted());
}

TEST(BodyStream, DrainedIsToldEachTime) {
  Fixture f;
  const auto stream = f.exchange->stream(200, {});
  int calls = 0;
  stream->on_drained([&] { ++calls; });
  f.loop->run();
  EXPECT_EQ(calls, 1);  // nothing waits yet
  for (int i = 0; i < 2; ++i) {
    stream->write(bytes("abc"));
    f.line->take(100);
    EXPECT_FALSE(f.line->sent(2));
    const auto call = f.line->sent(1);
    ASSERT_TRUE(call);
    call();
  }
  EXPECT_EQ(calls, 3);
  stream->write(bytes("a"));
  stream->end();
  f.line->take(100);
  EXPECT_FALSE(f.line->sent(1));
}

TEST(BodyStream, TooMuchWaitingBreaksIt) {
  Fixture f;
  const auto stream = f.exchange->stream(200, {});
  EXPECT_TRUE(stream->write(bytes("0123456789")));
  f.loop->run();
  f.end->pumps = 0;
  EXPECT_FALSE(stream->write(bytes("x")));
  f.loop->run();
  EXPECT_EQ(f.end->pumps, 1);  // at once, though the connection has not looked since the last time
  EXPECT_TRUE(f.line->aborted());
  EXPECT_TRUE(f.line->take(100).pieces.empty());
  EXPECT_FALSE(stream->write(bytes("")));
}

TEST(BodyStream, DroppedIsAborted) {
  Fixture f;
  f.exchange->stream(200, {})->write(bytes("a"));
  EXPECT_TRUE(f.line->aborted());
}

TEST(BodyStream, WithoutAReader) {
  Fixture head(true);
  EXPECT_FALSE(head.exchange->stream(200, {})->write(bytes("a")));
  Fixture f;
  const auto stream = f.exchange->stream(200, {});
  stream->write(bytes("a"));
  f.line->set_gone();
  EXPECT_FALSE(stream->write(bytes("a")));
  EXPECT_EQ(stream->waiting_bytes(), 0u);
}

TEST(BodyStream, CallbacksMayHoldTheStream) {
  std::weak_ptr<BodyStream> weak;
  {
    Fixture f;
    const auto stream = f.exchange->stream(200, {});
    weak = stream;
    stream->on_drained([stream] {});
    f.exchange->on_gone([stream] {});
    f.loop->run();
    for (const auto& call : f.line->set_gone()) call();
  }
  EXPECT_TRUE(weak.expired());
}

TEST(BodyStream, ManyWritersOneTaker) {
  Fixture f(false, 1 << 20);
  const auto stream = f.exchange->stream(200, {});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) stream->write(bytes("ab"));
    });
  std::size_t taken = 0;
  while (taken < 8000) {
    for (const Bytes& each : f.line->take(64).pieces) {
      taken += each->size();
      f.line->sent(each->size());
    }
    f.loop->run();
  }
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(stream->waiting_bytes(), 0u);
}

}  // namespace
}  // namespace pom::net
