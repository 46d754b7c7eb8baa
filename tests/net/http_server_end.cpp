// Tests of endings: a server that stops, clients that are cut off at any moment, and that nothing is left of
// either.
#include "tests/net/net_support.h"
#include <random>

#include "pom/base/error.h"
#include "pom/net/http_server.h"

namespace pom::net {
namespace {

// A job for each request, answered by the test.
struct Jobs {
  Handler handler() {
    return [this](const std::shared_ptr<Exchange>& exchange) {
      const std::lock_guard guard(mutex);
      held.push_back(exchange);
      exchange->on_gone([this] { ++gone; });
    };
  }
  std::size_t count() {
    const std::lock_guard guard(mutex);
    return held.size();
  }
  void answer_all() {
    const std::lock_guard guard(mutex);
    for (const auto& each : held) echo(each);
    held.clear();
  }
  std::mutex mutex;
  std::vector<std::shared_ptr<Exchange>> held;
  std::atomic<int> gone = 0;
};

TEST(Stop, WaitsForAnswersAndClosesIdleConnections) {
  Jobs jobs;
  HttpServer server({}, jobs.handler());
  Client working(server.port()), idle(server.port());
  working.send(get("/job"));
  ASSERT_TRUE(eventually([&] { return jobs.count() == 1 && server.connections() == 2; }));
  std::thread later([&] {
    std::this_thread::sleep_for(150ms);
    jobs.answer_all();
  });
  const auto start = TestClock::now();
  server.stop(10s);
  EXPECT_GE(seconds_since(start), 0.14);
  EXPECT_LT(seconds_since(start), 5);
  later.join();
  EXPECT_TRUE(idle.closed());
  const Reply reply = working.reply();
  EXPECT_EQ(reply.body, "GET /job 0");
  EXPECT_EQ(reply.headers.get("Connection"), "close");
  EXPECT_EQ(jobs.gone, 0);
  EXPECT_FALSE(Client(server.port()).joined());
}

TEST(Stop, PatienceHasAnEnd) {
  Jobs jobs;
  HttpServer server({}, jobs.handler());
  Client working(server.port());
  working.send(get("/job"));
  ASSERT_TRUE(eventually([&] { return jobs.count() == 1; }));
  const auto start = TestClock::now();
  server.stop(100ms);
  EXPECT_GE(seconds_since(start), 0.09);
  EXPECT_LT(seconds_since(start), 5);
  EXPECT_EQ(jobs.gone, 1);
  EXPECT_TRUE(working.closed());
  jobs.answer_all();  // nobody is there any more
  server.stop(10s);   // and nothing is left to stop
}

TEST(Stop, AcceptsNoMoreButFinishesWhatHasBegun) {
  Jobs jobs;
  HttpServer server({}, jobs.handler());
  Client working(server.port()), half(server.port()), idle(server.port());
  working.send(get("/job"));
  half.send("GET /half HT");
  ASSERT_TRUE(eventually([&] { return jobs.count() == 1 && server.connections() == 3; }));
  std::this_thread::sleep_for(20ms);
  server.stop_accepting();
  EXPECT_TRUE(idle.closed());
  EXPECT_FALSE(Client(server.port()).joined());
  half.send("TP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return jobs.count() == 2; }));
  jobs.answer_all();
  EXPECT_EQ(half.reply().body, "GET /half 0");
  EXPECT_TRUE(half.closed());
  EXPECT_EQ(working.reply().body, "GET /job 0");
  EXPECT_TRUE(working.closed());
}

TEST(Stop, EndsStreamsThatNobodyEnds) {
  std::atomic<bool> gone = false;
  std::shared_ptr<BodyStream> stream;
  std::atomic<bool> begun = false;
  HttpServer server({}, [&](const std::shared_ptr<Exchange>& exchange) {
    exchange->on_gone([&] { gone = true; });
    stream = exchange->stream(200, {});
    begun = true;
  });
  Client client(server.port());
  client.send(get("/"));
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  server.stop(0ms);
  EXPECT_TRUE(gone);
  EXPECT_FALSE(stream->write(bytes("late")));
}

TEST(Stop, ExchangesAndStreamsMayOutliveTheServer) {
  Jobs jobs;
  std::shared_ptr<BodyStream> stream;
  {
    HttpServer server({}, jobs.handler());
    Client client(server.port()), second(server.port());
    client.send(get("/1"));
    second.send(get("/2"));
    ASSERT_TRUE(eventually([&] { return jobs.count() == 2; }));
    const std::lock_guard guard(jobs.mutex);
    stream = jobs.held[0]->stream(200, {});
    stream->on_drained([] {});
  }
  EXPECT_FALSE(stream->write(bytes("late")));
  stream->end();
  int calls = 0;
  jobs.held[1]->on_gone([&] { ++calls; });
  EXPECT_TRUE(jobs.held[1]->gone());
  echo(jobs.held[1]);
  jobs.held.clear();
  stream.reset();
  EXPECT_EQ(calls, 0);  // there is no thread to be called on
}

TEST(Stop, NotOnTheServersOwnThread) {
  std::atomic<bool> refused = false;
  HttpServer* itself = nullptr;
  HttpServer server({}, [&](const std::shared_ptr<Exchange>& exchange) {
    try {
      itself->stop(0ms);
    } catch (const Error&) {
      refused = true;
    }
    echo(exchange);
  });
  itself = &server;
  EXPECT_EQ(ask(server.port(), get("/")).status, 200);
  EXPECT_TRUE(refused);
}

TEST(Stop, APostThatComesTooLateIsDropped) {
  HttpServer server({}, echo);
  server.stop(0ms);
  auto held = std::make_shared<int>();
  server.post([held] { FAIL(); });
  server.post_after(0ms, [held] { FAIL(); });
  EXPECT_EQ(held.use_count(), 1);
}

TEST(Stop, ManyServersInTurn) {
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 30; ++i) {
    HttpServer server({}, echo);
    EXPECT_EQ(ask(server.port(), get("/")).status, 200);
  }
  EXPECT_EQ(open_descriptors(), before);
}

// ---- clients that are cut off ----

// Counts what is alive, of exchanges and streams, through what their callbacks hold.
class Alive {
 public:
  std::shared_ptr<void> one() {
    ++count_;
    return {nullptr, [this](void*) { --count_; }};
  }
  int count() const { return count_; }

 private:
  std::atomic<int> count_ = 0;
};

TEST(CutClients, LeaveNothingBehind) {
  constexpr int cuts = 500;
  Alive alive;
  std::atomic<int> jobs = 0, gone = 0;
  std::atomic<bool> stop = false;
  std::mutex mutex;
  std::vector<std::shared_ptr<Exchange>> queue;
  HttpServer server({}, [&](const std::shared_ptr<Exchange>& exchange) {
    ++jobs;
    // Each holds what holds it: whatever the end, the server lets go.
    exchange->on_gone([&, exchange, token = alive.one()] { ++gone; });
    if (exchange->request().path == "/stream") {
      const std::shared_ptr<BodyStream> stream = exchange->stream(200, {});
      stream->on_drained([stream, token = alive.one()] { stream->write(bytes(std::string(10'000, 'x'))); });
    } else {
      const std::lock_guard guard(mutex);
      queue.push_back(exchange);
    }
  });
  std::thread worker([&] {  // answers late, and after many have gone
    while (!stop) {
      std::this_thread::sleep_for(2ms);
      const std::lock_guard guard(mutex);
      for (const auto& each : queue) each->answer({.body = std::string(100'000, 'x')});
      queue.clear();
    }
  });
  EXPECT_EQ(ask(server.port(), get("/")).status, 200);
  ASSERT_TRUE(eventually([&] { return server.connections() == 0; }));
  const std::size_t descriptors = open_descriptors();
  std::mt19937 random(7);
  const std::string requests[] = {get("/a"), post("/b", std::string(5000, 'x')), get("/stream"),
                                  get("/a") + get("/b")};
  for (int i = 0; i < cuts; ++i) {
    Client client(server.port());
    const std::string& request = requests[random() % 4];
    const bool whole = random() % 3 != 0;
    client.send(std::string_view(request).substr(0, whole ? request.size() : random() % request.size()));
    if (random() % 4 == 0) client.receive(5ms);
    if (random() % 2 == 0) client.reset();
  }
  EXPECT_TRUE(eventually([&] { return server.connections() == 0; })) << server.connections();
  EXPECT_EQ(ask(server.port(), get("/")).status, 200);
  stop = true;
  worker.join();
  EXPECT_TRUE(eventually([&] { return server.connections() == 0; }));
  EXPECT_TRUE(eventually([&] { return alive.count() == 0; })) << alive.count();
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_GT(jobs, cuts / 3);
  EXPECT_GT(gone, 0);
}

}  // namespace
}  // namespace pom::net
