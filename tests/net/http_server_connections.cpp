// Tests of how many connections there may be, of whom, and who goes when they are too many.
#include "tests/net/net_support.h"
#include <algorithm>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/resource.h>

#include "pom/net/http_server.h"

namespace pom::net {
namespace {

TEST(Connections, WhenFullTheOneThatWaitsLongestGoes) {
  std::mutex mutex;
  std::shared_ptr<Exchange> job;
  HttpServer server({.connections = 4}, [&](const std::shared_ptr<Exchange>& exchange) {
    const std::lock_guard guard(mutex);
    if (exchange->request().path == "/job")
      job = exchange;
    else
      echo(exchange);
  });
  Client working(server.port());
  working.send(get("/job"));
  ASSERT_TRUE(eventually([&] {
    const std::lock_guard guard(mutex);
    return job != nullptr;
  }));
  Client oldest(server.port());
  ASSERT_TRUE(eventually([&] { return server.connections() == 2; }));
  Client half(server.port());
  half.send("GET / HT");
  ASSERT_TRUE(eventually([&] { return server.connections() == 3; }));
  Client third(server.port());
  ASSERT_TRUE(eventually([&] { return server.connections() == 4; }));
  EXPECT_EQ(ask(server.port(), get("/")).body, "GET / 0");  // the fifth
  EXPECT_TRUE(oldest.closed());
  half.send("TP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(half.reply().status, 200);
  {
    const std::lock_guard guard(mutex);
    echo(job);
  }
  EXPECT_EQ(working.reply().body, "GET /job 0");
}

TEST(Connections, WhenAllWorkTheNewOneIsTurnedAway) {
  std::mutex mutex;
  std::vector<std::shared_ptr<Exchange>> jobs;
  HttpServer server({.connections = 2}, [&](const std::shared_ptr<Exchange>& exchange) {
    const std::lock_guard guard(mutex);
    jobs.push_back(exchange);
  });
  Client first(server.port()), second(server.port());
  first.send(get("/1"));
  second.send(get("/2"));
  ASSERT_TRUE(eventually([&] {
    const std::lock_guard guard(mutex);
    return jobs.size() == 2;
  }));
  Client third(server.port());
  const Reply reply = third.reply();
  EXPECT_EQ(reply.status, 503);
  EXPECT_TRUE(third.closed());
  {
    const std::lock_guard guard(mutex);
    for (const auto& each : jobs) echo(each);
  }
  EXPECT_EQ(first.reply().body, "GET /1 0");
  EXPECT_EQ(second.reply().body, "GET /2 0");
}

// An address of this machine that is not a loopback, or 0.
std::uint32_t own_address() {
  ifaddrs* all = nullptr;
  std::uint32_t found = 0;
  if (::getifaddrs(&all) != 0) return 0;
  for (const ifaddrs* each = all; each; each = each->ifa_next)
    if (each->ifa_addr && each->ifa_addr->sa_family == AF_INET && !(each->ifa_flags & IFF_LOOPBACK))
      found = reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr.s_addr;
  ::freeifaddrs(all);
  return found;
}

TEST(Connections, ALimitForEachAddress) {
  const std::uint32_t address = own_address();
  if (address == 0) GTEST_SKIP() << "this machine has only its loopback";
  HttpServer server({.host = "0.0.0.0", .connections_an_address = 2}, echo);
  std::vector<Client> clients;
  for (int i = 0; i < 2; ++i) {
    clients.emplace_back(server.port(), false, address).send(get("/"));
    EXPECT_EQ(clients.back().reply().status, 200);
  }
  EXPECT_EQ(Client(server.port(), false, address).reply().status, 503);
  EXPECT_EQ(ask(server.port(), get("/")).status, 200);  // another address
  clients.pop_back();
  EXPECT_TRUE(eventually([&] { return server.connections() == 1; }));
  Client again(server.port(), false, address);
  again.send(get("/"));
  EXPECT_EQ(again.reply().status, 200);
}

TEST(Connections, WithoutDescriptorsTheOneThatWaitsLongestGoes) {
  HttpServer server({}, echo);
  std::vector<Client> clients;
  for (int i = 0; i < 12; ++i) clients.emplace_back();  // they have their descriptors before there are none
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{static_cast<rlim_t>(clients.back().descriptor() + 5), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  for (Client& each : clients) EXPECT_TRUE(each.join(server.port()));
  Client& newest = clients.back();
  newest.send(get("/"));
  EXPECT_EQ(newest.reply().status, 200);
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(clients.front().closed());
  EXPECT_EQ(ask(server.port(), get("/")).status, 200);
}

TEST(Connections, LoopbackIsNoOneAddress) {
  HttpServer server({.connections_an_address = 2}, echo);
  std::vector<Client> clients;
  for (int i = 0; i < 5; ++i) clients.emplace_back(server.port());
  for (Client& each : clients) {
    each.send(get("/"));
    EXPECT_EQ(each.reply().status, 200);
  }
}

// ---- all of it at once ----

// Clients who send a byte now and then, and whoever asks meanwhile. Gives the slowest of the answers to him.
double ask_beside_slow_heads(HttpServer& server, std::vector<Client>& slow,
                             std::chrono::milliseconds duration) {
  std::vector<double> seconds;
  const auto end = TestClock::now() + duration;
  while (TestClock::now() < end) {
    for (Client& each : slow) each.send("x");
    const auto start = TestClock::now();
    EXPECT_EQ(ask(server.port(), get("/health")).status, 200);
    seconds.push_back(seconds_since(start));
    std::this_thread::sleep_for(10ms);
  }
  std::ranges::sort(seconds);
  return seconds[seconds.size() * 9 / 10];
}

TEST(SlowClients, AreShedWhileOthersAreServed) {
  constexpr int count = 200;
  for (const bool deadline : {true, false}) {
    HttpServer server({.head_time = deadline ? 400ms : 60'000ms}, echo);
    std::vector<Client> slow;
    for (int i = 0; i < count; ++i) slow.emplace_back(server.port()).send("GET /");
    const double slowest = ask_beside_slow_heads(server, slow, 900ms);
    EXPECT_LT(slowest, sanitized ? 0.5 : 0.05);
    // Those who were told 408 linger for a second; the control keeps them all.
    if (deadline)
      EXPECT_TRUE(eventually([&] { return server.connections() == 0; }));
    else
      EXPECT_EQ(server.connections(), count);
  }
}

TEST(SlowClients, ReadersOfStreamsWhoReadNothing) {
  constexpr int count = 50;
  std::mutex mutex;
  std::vector<std::shared_ptr<BodyStream>> streams;
  std::atomic<int> gone = 0;
  HttpServer server({.write_time = 300ms, .stream_bytes = 4 << 20},
                    [&](const std::shared_ptr<Exchange>& exchange) {
                      if (exchange->request().path == "/health") return echo(exchange);
                      exchange->on_gone([&] { ++gone; });
                      const std::lock_guard guard(mutex);
                      streams.push_back(exchange->stream(200, {}));
                    });
  std::vector<Client> readers;
  for (int i = 0; i < count; ++i) readers.emplace_back(server.port()).send(get("/stream"));
  ASSERT_TRUE(eventually([&] {
    const std::lock_guard guard(mutex);
    return streams.size() == count;
  }));
  const Bytes frame = bytes(std::string(64 << 10, 'x'));  // shared by all of them
  EXPECT_TRUE(eventually([&] {
    const std::lock_guard guard(mutex);
    std::erase_if(streams, [&](const auto& each) { return !each->write(frame); });
    return streams.empty();
  }));
  EXPECT_TRUE(eventually([&] { return gone == count; }));
  EXPECT_EQ(ask(server.port(), get("/health")).status, 200);
}

}  // namespace
}  // namespace pom::net
