// Tests of the server's limits: of bytes and of time. Times are short here and the limits the
// same.
#include "tests/net/net_support.h"
#include <algorithm>

#include "pom/net/http_server.h"
#include "pom/net/metrics.h"

namespace pom::net {
namespace {

// A head that is exactly so long.
std::string head_of(std::size_t size) {
  const std::string empty = get("/", "X: \r\n");
  return get("/", "X: " + std::string(size - empty.size(), 'x') + "\r\n");
}

std::string chunked_body(std::size_t size, std::size_t piece) {
  std::string text = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (std::size_t at = 0; at < size; at += piece) {
    const std::size_t count = std::min(piece, size - at);
    char line[32];
    std::snprintf(line, sizeof line, "%zx\r\n", count);
    text += line + std::string(count, 'x') + "\r\n";
  }
  return text + "0\r\n\r\n";
}

// ---- bytes ----

TEST(Limits, HeadsToTheByte) {
  HttpServer server({.head_bytes = 1000}, echo);
  EXPECT_EQ(ask(server.port(), head_of(1000)).status, 200);
  EXPECT_EQ(ask(server.port(), head_of(1001)).status, 431);
  HttpServer usual({}, echo);
  EXPECT_EQ(ask(usual.port(), head_of(8192)).status, 200);
  EXPECT_EQ(ask(usual.port(), head_of(8193)).status, 431);
  HttpServer large({.head_bytes = 100'000}, echo);
  EXPECT_EQ(ask(large.port(), head_of(100'000)).status, 200);
  EXPECT_EQ(ask(large.port(), head_of(100'001)).status, 431);
}

TEST(Limits, BodiesToTheByteByLengthAndInChunks) {
  constexpr std::size_t most = 1 << 20;
  HttpServer server({}, echo);
  EXPECT_EQ(ask(server.port(), post("/", std::string(most, 'x'))).body, "POST / 1048576");
  EXPECT_EQ(ask(server.port(), post("/", std::string(most + 1, 'x'))).status, 413);
  for (const std::size_t piece : {most + 1, std::size_t{1000}}) {
    EXPECT_EQ(ask(server.port(), chunked_body(most, piece)).body, "POST / 1048576") << piece;
    EXPECT_EQ(ask(server.port(), chunked_body(most + 1, piece)).status, 413) << piece;
  }
}

TEST(Limits, BodiesByPath) {
  ServerOptions options{.body_bytes = 10};
  options.body_limit = [](const HttpRequest& head) -> std::int64_t {
    return head.path == "/upload" ? 1000 : head.path == "/none" ? -1 : 10;
  };
  HttpServer server(std::move(options), echo);
  EXPECT_EQ(ask(server.port(), post("/", std::string(10, 'x'))).status, 200);
  EXPECT_EQ(ask(server.port(), post("/", std::string(11, 'x'))).status, 413);
  EXPECT_EQ(ask(server.port(), post("/upload", std::string(1000, 'x'))).status, 200);
  EXPECT_EQ(ask(server.port(), post("/upload", std::string(1001, 'x'))).status, 413);
  EXPECT_EQ(ask(server.port(), post("/none", "")).status, 413);
}

TEST(Limits, AnAnswerComesThroughThoughTheClientStillSends) {
  HttpServer server({}, echo);
  Client client(server.port());
  client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50000000\r\n\r\n");
  const std::string piece(1 << 20, 'x');
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(client.send(piece));
  EXPECT_EQ(client.reply().status, 413);
  EXPECT_TRUE(client.closed());
  EXPECT_FALSE(client.was_reset());
}

TEST(Limits, AMillionChunksOfOneByte) {
  HttpServer server({}, echo);
  HttpServer strict({.body_bytes = 65'536}, echo);
  const std::string request = chunked_body(1'000'000, 1);
  ask(server.port(), chunked_body(1000, 1));
  ask(strict.port(), post("/", std::string(100'000, 'x')));
  const double before = resident_memory_bytes();
  EXPECT_EQ(ask(server.port(), request).body, "POST / 1000000");
  EXPECT_EQ(ask(strict.port(), request).status, 413);
  const double growth = resident_memory_bytes() - before;
  EXPECT_TRUE(sanitized || growth <= 1 << 20) << growth;
}

TEST(Limits, FiftyMegabytesWithoutALineEnd) {
  HttpServer server({}, echo);
  ask(server.port(), get("/"));
  const double before = resident_memory_bytes();
  Client client(server.port());
  const std::string piece(1 << 20, 'x');
  for (int i = 0; i < 50; ++i)
    if (!client.send(piece)) break;
  EXPECT_EQ(client.reply().status, 431);
  const double growth = resident_memory_bytes() - before;
  EXPECT_TRUE(sanitized || growth <= 4 << 20) << growth;  // of which piece is one
}

// ---- time ----

TEST(Deadlines, OfTheWholeHead) {
  HttpServer server({.head_time = 150ms}, echo);
  Client slow(server.port());
  const auto start = TestClock::now();
  std::thread dribble([&] {
    for (const char c : get("/")) {
      if (!slow.send(std::string(1, c))) break;
      std::this_thread::sleep_for(20ms);  // each byte in time, the head not
    }
  });
  Client silent(server.port());
  EXPECT_TRUE(silent.closed(5s));
  dribble.join();
  const Reply reply = slow.reply();
  EXPECT_EQ(reply.status, 408);
  EXPECT_NE(reply.body.find("too_slow"), std::string::npos);
  EXPECT_GE(seconds_since(start), 0.15);
}

TEST(Deadlines, OfTheHeadOfALaterRequestAndOfIdleConnections) {
  HttpServer server({.head_time = 150ms, .idle_time = 1200ms}, echo);
  Client slow(server.port()), idle(server.port());
  for (Client* each : {&slow, &idle}) {
    each->send(get("/"));
    EXPECT_EQ(each->reply().status, 200);
  }
  const auto start = TestClock::now();
  std::this_thread::sleep_for(200ms);  // longer than a head may take: nothing has begun
  slow.send("GET / HT");
  EXPECT_EQ(slow.reply().status, 408);
  EXPECT_GE(seconds_since(start), 0.35);
  EXPECT_LT(seconds_since(start), 1.1);
  EXPECT_TRUE(idle.closed());
  EXPECT_GE(seconds_since(start), 1.1);
}

TEST(Deadlines, OfTheWholeBody) {
  HttpServer server({.body_time = 150ms, .body_rate = 0}, echo);
  Client client(server.port());
  const auto start = TestClock::now();
  client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
  std::thread dribble([&] {
    for (int i = 0; i < 30 && client.send("x"); ++i) std::this_thread::sleep_for(10ms);
  });
  dribble.join();
  EXPECT_EQ(client.reply().status, 408);
  EXPECT_GE(seconds_since(start), 0.15);
}

TEST(Deadlines, OfTheRateOfABody) {
  HttpServer server({.body_time = 30s, .body_rate = 10'000}, echo);
  const auto head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20000\r\n\r\n";
  Client slow(server.port()), quick(server.port());
  const auto start = TestClock::now();
  slow.send(head);
  quick.send(head);
  slow.send(std::string(2000, 'x'));  // good for 0.2 s after the first second
  quick.send(std::string(15'000, 'x'));
  EXPECT_EQ(slow.reply().status, 408);
  EXPECT_GE(seconds_since(start), 1.2);
  EXPECT_LT(seconds_since(start), 2.4);
  quick.send(std::string(5000, 'x'));
  EXPECT_EQ(quick.reply().body, "POST / 20000");
}

TEST(Deadlines, AJobMayTakeItsTime) {
  std::thread worker;
  HttpServer server({.head_time = 50ms, .body_time = 50ms, .idle_time = 50ms, .write_time = 50ms},
                    [&](const std::shared_ptr<Exchange>& exchange) {
                      worker = std::thread([exchange] {
                        std::this_thread::sleep_for(200ms);
                        const auto stream = exchange->stream(200, {});
                        std::this_thread::sleep_for(200ms);
                        stream->write(bytes("late"));
                        stream->end();
                      });
                    });
  EXPECT_EQ(ask(server.port(), get("/")).body, "late");
  worker.join();
}

TEST(Deadlines, OfAReaderWhoReadsNothing) {
  std::atomic<bool> gone = false;
  const Bytes large = bytes(std::string(32 << 20, 'x'));
  std::atomic<int> status = 0;
  ServerOptions options{.write_time = 200ms};
  options.on_answer = [&](const HttpRequest&, int answered, std::uint64_t sent, double) {
    EXPECT_LT(sent, large->size());
    status = answered;
  };
  HttpServer server(std::move(options), [&](const std::shared_ptr<Exchange>& exchange) {
    exchange->on_gone([&] { gone = true; });
    exchange->answer({.shared = large});
  });
  Client client(server.port());
  client.send(get("/"));
  EXPECT_TRUE(eventually([&] { return gone.load(); }));
  EXPECT_EQ(status, 200);
  EXPECT_TRUE(eventually([&] { return server.connections() == 0; }));
}

TEST(Deadlines, ASlowReaderWhoReadsIsServed) {
  const Bytes large = bytes(std::string(12 << 20, 'x'));
  HttpServer server({.write_time = 300ms},
                    [&](const std::shared_ptr<Exchange>& exchange) { exchange->answer({.shared = large}); });
  Client client(server.port());
  client.send(get("/"));
  std::size_t got = 0;
  const auto start = TestClock::now();
  while (got < large->size() && client.receive()) {
    if (client.got().size() / (1 << 20) > got / (1 << 20)) std::this_thread::sleep_for(50ms);
    got = client.got().size();
  }
  EXPECT_GT(seconds_since(start), 0.4);
  EXPECT_EQ(client.reply().body, *large);
}

TEST(Limits, AStreamWithTooMuchWaitingIsClosed) {
  std::atomic<bool> gone = false;
  std::atomic<int> written = 0;
  std::thread producer;
  HttpServer server({.stream_bytes = 1 << 20}, [&](const std::shared_ptr<Exchange>& exchange) {
    exchange->on_gone([&] { gone = true; });
    producer = std::thread([&, stream = exchange->stream(200, {})] {
      while (stream->write(bytes(std::string(100'000, 'x')))) {
        ++written;
        EXPECT_LE(stream->waiting_bytes(), 1u << 20);
      }
    });
  });
  Client client(server.port());
  client.send(get("/"));
  EXPECT_TRUE(eventually([&] { return gone.load(); }));
  producer.join();
  EXPECT_GE(written, 10);
  EXPECT_TRUE(eventually([&] { return server.connections() == 0; }));
}

}  // namespace
}  // namespace pom::net
