// Tests of answers that are made bit by bit, and of clients that leave before they have them.
#include "tests/net/net_support.h"
#include <algorithm>

#include "pom/net/http_server.h"

namespace pom::net {
namespace {

TEST(HttpServer, StreamsInChunksFromAnotherThread) {
  std::thread writer;
  HttpServer server({}, [&](const std::shared_ptr<Exchange>& exchange) {
    writer = std::thread([stream = exchange->stream(201, {{"Content-Type", "text/plain"}})] {
      for (int i = 0; i < 100; ++i) EXPECT_TRUE(stream->write(bytes("piece " + std::to_string(i) + "\n")));
      stream->end();
      EXPECT_FALSE(stream->write(bytes("late")));
    });
  });
  Client client(server.port());
  client.send(get("/"));
  const Reply reply = client.reply();
  writer.join();
  EXPECT_EQ(reply.status, 201);
  EXPECT_EQ(reply.headers.get("Transfer-Encoding"), "chunked");
  EXPECT_TRUE(reply.whole);
  EXPECT_TRUE(reply.body.starts_with("piece 0\npiece 1\n") && reply.body.ends_with("piece 99\n"));
  client.send(get("/"));  // the connection goes on
  EXPECT_EQ(client.reply().status, 201);
  writer.join();
}

TEST(HttpServer, StreamsOfHttp10EndWithTheConnection) {
  HttpServer server({}, [&](const std::shared_ptr<Exchange>& exchange) {
    const auto stream = exchange->stream(200, {});
    stream->write(bytes("abc"));
    if (exchange->request().path == "/whole")
      stream->end();
    else
      stream->abort();
  });
  Client whole(server.port());
  whole.send("GET /whole HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const Reply reply = whole.reply();
  EXPECT_EQ(reply.headers.get("Connection"), "close");
  EXPECT_FALSE(reply.headers.find("Transfer-Encoding"));
  EXPECT_EQ(reply.body, "abc");
  EXPECT_FALSE(whole.was_reset());
  Client broken(server.port());
  broken.send("GET /broken HTTP/1.0\r\n\r\n");
  while (broken.receive()) {
  }
  EXPECT_TRUE(broken.was_reset());
}

TEST(HttpServer, AnAbortedOrDroppedStreamIsSeenToBreak) {
  HttpServer server({}, [&](const std::shared_ptr<Exchange>& exchange) {
    const auto stream = exchange->stream(200, {});
    stream->write(bytes("abc"));
    if (exchange->request().path == "/abort") stream->abort();
  });
  for (const char* path : {"/abort", "/drop"}) {
    const Reply reply = ask(server.port(), get(path));
    EXPECT_FALSE(reply.whole) << path;
  }
}

TEST(HttpServer, HeadOfAStream) {
  HttpServer server({}, [&](const std::shared_ptr<Exchange>& exchange) {
    const auto stream = exchange->stream(200, {{"X", "y"}});
    EXPECT_EQ(stream->write(bytes("abc")), exchange->request().method != "HEAD");
    stream->end();
  });
  Client client(server.port());
  client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n" + get("/"));
  EXPECT_EQ(client.reply(true).headers.get("X"), "y");
  EXPECT_EQ(client.reply().body, "abc");
}

TEST(HttpServer, AStreamThatWaitsForItsReader) {
  constexpr int pieces = 200;
  std::atomic<std::size_t> most = 0;
  HttpServer server({}, [&](const std::shared_ptr<Exchange>& exchange) {
    const std::shared_ptr<BodyStream> stream = exchange->stream(200, {});
    const auto left = std::make_shared<int>(pieces);
    stream->on_drained([stream, left, &most] {
      most = std::max(most.load(), stream->waiting_bytes());
      if ((*left)-- > 0)
        stream->write(bytes(std::string(100'000, 'x')));
      else
        stream->end();
    });
  });
  const Reply reply = ask(server.port(), get("/"));
  EXPECT_TRUE(reply.whole);
  EXPECT_EQ(reply.body.size(), pieces * 100'000u);
  EXPECT_EQ(most, 0u);
}

// ---- clients that leave ----

TEST(HttpServer, ALeavingClientIsSeenAtOnce) {
  std::mutex mutex;
  std::vector<double> delays;
  std::atomic<int> begun = 0;
  TestClock::time_point left;
  HttpServer server({}, [&](const std::shared_ptr<Exchange>& exchange) {
    const std::shared_ptr<BodyStream> stream =
        exchange->request().path == "/stream" ? exchange->stream(200, {}) : nullptr;
    exchange->on_gone([&, exchange, stream] {
      const std::lock_guard guard(mutex);
      delays.push_back(seconds_since(left));
      EXPECT_TRUE(exchange->gone());
    });
    ++begun;
  });
  int asked = 0;
  for (const char* path : {"/job", "/stream"})
    for (const bool reset : {false, true})
      for (int i = 0; i < 3; ++i) {
        Client client(server.port());
        client.send(get(path));
        ++asked;
        ASSERT_TRUE(eventually([&] { return begun == asked; }));
        {
          const std::lock_guard guard(mutex);
          left = TestClock::now();
        }
        if (reset)
          client.reset();
        else
          client.close();
        ASSERT_TRUE(eventually([&] {
          const std::lock_guard guard(mutex);
          return delays.size() == static_cast<std::size_t>(asked);
        }));
      }
  std::ranges::sort(delays);
  EXPECT_LT(delays[delays.size() / 2], sanitized ? 0.5 : 0.05);
  EXPECT_TRUE(eventually([&] { return server.connections() == 0; }));
}

TEST(HttpServer, OneWhoSentTheNextRequestAheadIsSeenToLeaveToo) {
  std::atomic<bool> begun = false, gone = false;
  HttpServer server({}, [&](const std::shared_ptr<Exchange>& exchange) {
    exchange->on_gone([&, exchange] { gone = true; });
    begun = true;
  });
  Client client(server.port());
  client.send(get("/1") + get("/2"));
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  client.close();
  EXPECT_TRUE(eventually([&] { return gone.load(); }));
}

TEST(HttpServer, GoneIsNotToldOfAnswersThatWereWhole) {
  std::atomic<int> gone = 0;
  HttpServer server({}, [&](const std::shared_ptr<Exchange>& exchange) {
    exchange->on_gone([&] { ++gone; });
    echo(exchange);
  });
  for (int i = 0; i < 5; ++i) ask(server.port(), get("/"));
  EXPECT_TRUE(eventually([&] { return server.connections() == 0; }));
  EXPECT_EQ(gone, 0);
}

TEST(HttpServer, AnAnswerAtOnceReachesOneWhoSendsNoMore) {
  HttpServer server({}, echo);
  Client client(server.port());
  client.send(get("/"));
  client.half_close();
  EXPECT_EQ(client.reply().body, "GET / 0");
  EXPECT_TRUE(client.closed());
}

TEST(HttpServer, AnswersFromManyThreadsAtOnce) {
  constexpr int clients = 8, requests = 25;
  std::mutex mutex;
  std::vector<std::shared_ptr<Exchange>> queue;
  std::atomic<bool> stop = false;
  HttpServer server({}, [&](std::shared_ptr<Exchange> exchange) {
    const std::lock_guard guard(mutex);
    queue.push_back(std::move(exchange));
  });
  std::vector<std::thread> workers, askers;
  for (int i = 0; i < 3; ++i)
    workers.emplace_back([&] {
      while (!stop) {
        std::shared_ptr<Exchange> next;
        {
          const std::lock_guard guard(mutex);
          if (!queue.empty()) {
            next = std::move(queue.back());
            queue.pop_back();
          }
        }
        if (next)
          echo(next);
        else
          std::this_thread::sleep_for(200us);
      }
    });
  std::atomic<int> right = 0;
  for (int c = 0; c < clients; ++c)
    askers.emplace_back([&, c] {
      Client client(server.port());
      for (int i = 0; i < requests; ++i) {
        const std::string path = "/" + std::to_string(c) + "/" + std::to_string(i);
        client.send(get(path));
        right += client.reply().body == "GET " + path + " 0";
      }
    });
  for (std::thread& each : askers) each.join();
  stop = true;
  for (std::thread& each : workers) each.join();
  EXPECT_EQ(right, clients * requests);
}

}  // namespace
}  // namespace pom::net
