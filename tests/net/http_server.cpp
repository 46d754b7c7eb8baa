// Tests of the server over real sockets: requests, answers, and what becomes of connections.
#include "pom/net/http_server.h"

#include "tests/net/net_support.h"

#include "pom/base/error.h"

namespace pom::net {
namespace {

TEST(HttpServer, AnswersOnBothLoopbacks) {
  HttpServer server({}, echo);
  ASSERT_NE(server.port(), 0);
  EXPECT_EQ(server.addresses().front(), "http://127.0.0.1:" + std::to_string(server.port()));
  EXPECT_EQ(ask(server.port(), get("/a%20b?c=d+e")).body, "GET /a b?c=d e 0");
  if (server.addresses().size() < 2) GTEST_SKIP() << "this machine has no IPv6";
  EXPECT_EQ(server.addresses().back(), "http://[::1]:" + std::to_string(server.port()));
  Client client(server.port(), true);
  client.send(get("/"));
  EXPECT_EQ(client.reply().body, "GET / 0");
}

TEST(HttpServer, KnowsItsClient) {
  std::string client;
  std::uint64_t number = 0;
  HttpServer server({}, [&](const std::shared_ptr<Exchange>& exchange) {
    client = exchange->request().client;
    number = exchange->request().number;
    echo(exchange);
  });
  ask(server.port(), get("/"));
  ask(server.port(), get("/"));
  server.stop(1s);
  EXPECT_EQ(client, "127.0.0.1");
  EXPECT_EQ(number, 2u);
}

TEST(HttpServer, AddressesThatCannotBeHad) {
  const auto refusal = [](ServerOptions options) -> std::string {
    try {
      HttpServer server(std::move(options), echo);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  HttpServer first({}, echo);
  const std::string port = std::to_string(first.port());
  EXPECT_EQ(refusal({.port = first.port()}),
            "http server: 127.0.0.1:" + port + ": cannot listen: Address already in use");
  EXPECT_TRUE(refusal({.host = "192.0.2.1"}).starts_with("http server: 192.0.2.1:0: cannot listen: "));
  EXPECT_TRUE(refusal({.host = "no such name"}).starts_with("http server: no such name: cannot listen: "));
  EXPECT_EQ(refusal({.head_bytes = 0}), "http server: head_bytes: expected at least 1, got 0");
  EXPECT_EQ(refusal({.body_bytes = -1}), "http server: body_bytes: expected at least 0, got -1");
  EXPECT_THROW(HttpServer({}, nullptr), Error);
}

TEST(HttpServer, KeepsConnectionsAndAnswersInOrder) {
  HttpServer server({}, echo);
  Client client(server.port());
  client.send(get("/1") + post("/2", "abc") + get("/3"));
  EXPECT_EQ(client.reply().body, "GET /1 0");
  EXPECT_EQ(client.reply().body, "POST /2 3");
  EXPECT_EQ(client.reply().body, "GET /3 0");
  client.send(get("/4"));
  EXPECT_EQ(client.reply().body, "GET /4 0");
  EXPECT_EQ(server.connections(), 1);
}

TEST(HttpServer, PipelinedAnswersWaitForSlowOnes) {
  std::mutex mutex;
  std::vector<std::shared_ptr<Exchange>> held;
  HttpServer server({}, [&](const std::shared_ptr<Exchange>& exchange) {
    const std::lock_guard guard(mutex);
    held.push_back(exchange);
  });
  const auto count = [&] {
    const std::lock_guard guard(mutex);
    return held.size();
  };
  Client client(server.port());
  client.send(get("/1") + get("/2"));
  ASSERT_TRUE(eventually([&] { return count() == 1; }));
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(count(), 1u);  // one after the other
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(eventually([&] { return count() == i + 1; }));
    const std::lock_guard guard(mutex);
    echo(held[i]);
  }
  EXPECT_EQ(client.reply().body, "GET /1 0");
  EXPECT_EQ(client.reply().body, "GET /2 0");
}

TEST(HttpServer, AThousandPipelinedRequests) {
  HttpServer server({}, echo);
  Client client(server.port());
  std::string all;
  for (int i = 0; i < 1000; ++i) all += get("/" + std::to_string(i));
  std::thread sender([&] { client.send(all); });
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(client.reply().body, "GET /" + std::to_string(i) + " 0");
  sender.join();
}

TEST(HttpServer, ClosesWhereItIsAskedTo) {
  HttpServer server({}, [](const std::shared_ptr<Exchange>& exchange) {
    HttpResponse response{.body = "x"};
    if (exchange->request().path == "/close") response.headers.add("Connection", "close");
    exchange->answer(std::move(response));
  });
  for (const std::string& request :
       {get("/", "Connection: close\r\n"), get("/close"), std::string("GET / HTTP/1.0\r\n\r\n")}) {
    Client client(server.port());
    client.send(request);
    EXPECT_EQ(client.reply().headers.get("Connection"), "close") << request;
    EXPECT_TRUE(client.closed()) << request;
  }
  Client kept(server.port());
  for (int i = 0; i < 2; ++i) {
    kept.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(kept.reply().headers.get("Connection"), "keep-alive");
  }
}

TEST(HttpServer, HeadHasAllButTheBody) {
  HttpServer server({}, echo);
  Client client(server.port());
  for (int i = 0; i < 2; ++i) {
    client.send("HEAD /abc HTTP/1.1\r\nHost: a\r\n\r\n");
    const Reply reply = client.reply(true);
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.headers.get("Content-Length"), "11");
  }
  client.send(get("/"));
  EXPECT_EQ(client.reply().body, "GET / 0");
}

TEST(HttpServer, StatusesWithoutABody) {
  HttpServer server({}, [](const std::shared_ptr<Exchange>& exchange) {
    exchange->answer({.status = exchange->request().path == "/204" ? 204 : 304, .body = "never sent"});
  });
  Client client(server.port());
  client.send(get("/204") + get("/304"));
  EXPECT_EQ(client.reply().status, 204);
  const Reply reply = client.reply();
  EXPECT_EQ(reply.status, 304);
  EXPECT_FALSE(reply.headers.find("Content-Length"));
  EXPECT_EQ(client.got(), "");
}

TEST(HttpServer, LargeAnswersFromBytesThatAreShared) {
  const Bytes large = bytes(std::string(8 << 20, 'x'));
  HttpServer server({},
                    [&](const std::shared_ptr<Exchange>& exchange) { exchange->answer({.shared = large}); });
  const Reply reply = ask(server.port(), get("/"));
  EXPECT_TRUE(reply.whole);
  EXPECT_EQ(reply.body, *large);
}

TEST(HttpServer, ContinueIsSaidBeforeTheBodyAndNotToWhomIsRefused) {
  ServerOptions options;
  options.refuse = [](const HttpRequest& head) -> std::optional<HttpResponse> {
    if (head.path != "/no") return std::nullopt;
    return HttpResponse{.status = 403, .body = "no"};
  };
  HttpServer server(std::move(options), echo);
  const auto head = [](const char* path) {
    return "POST " + std::string(path) +
           " HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
  };
  Client client(server.port());
  client.send(head("/yes"));
  EXPECT_EQ(client.reply().status, 100);
  client.send("abc");
  EXPECT_EQ(client.reply().body, "POST /yes 3");
  client.send(head("/yes") + "abc");  // whoever does not wait is not told
  EXPECT_EQ(client.reply().body, "POST /yes 3");
  client.send(head("/no"));
  EXPECT_EQ(client.reply().status, 403);
  EXPECT_TRUE(client.closed());
}

TEST(HttpServer, RefusesByTheHeadAlone) {
  std::atomic<int> handled = 0;
  ServerOptions options;
  options.refuse = [](const HttpRequest& head) -> std::optional<HttpResponse> {
    EXPECT_EQ(head.body, "");
    EXPECT_EQ(head.client, "127.0.0.1");
    if (head.headers.get("X-API-Key") == "right") return std::nullopt;
    return HttpResponse{.status = 401, .body = "no", .delay = 50ms};
  };
  HttpServer server(std::move(options), [&](const std::shared_ptr<Exchange>& exchange) {
    ++handled;
    echo(exchange);
  });
  Client client(server.port());
  const auto start = TestClock::now();
  client.send(get("/"));
  EXPECT_EQ(client.reply().status, 401);
  EXPECT_GE(seconds_since(start), 0.05);
  client.send(get("/", "X-API-Key: right\r\n"));  // the connection stays where no body was to come
  EXPECT_EQ(client.reply().status, 200);
  client.send(post("/", "abc"));
  const Reply refused = client.reply();
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.headers.get("Connection"), "close");
  EXPECT_TRUE(client.closed());
  EXPECT_EQ(handled, 1);
}

TEST(HttpServer, FailuresAreAnIdForTheClientAndATextForTheLog) {
  std::mutex mutex;
  std::vector<std::pair<std::string, std::string>> failures;
  ServerOptions options;
  options.on_failure = [&](std::string_view id, std::string_view what) {
    const std::lock_guard guard(mutex);
    failures.emplace_back(id, what);
  };
  options.refuse = [](const HttpRequest& head) -> std::optional<HttpResponse> {
    if (head.path == "/refuse") throw std::runtime_error("secret 4");
    return std::nullopt;
  };
  HttpServer server(std::move(options), [](const std::shared_ptr<Exchange>& exchange) {
    if (exchange->request().path == "/throw") throw std::runtime_error("secret 1");
    if (exchange->request().path == "/odd") throw 7;
    if (exchange->request().path == "/late") {
      echo(exchange);
      throw std::runtime_error("after the answer");
    }
  });
  Client client(server.port());
  const char* paths[] = {"/throw", "/odd", "/drop", "/refuse"};
  const char* texts[] = {"secret 1", "an exception of another kind", "the handler gave no answer",
                         "secret 4"};
  for (int i = 0; i < 4; ++i) {
    client.send(get(paths[i]));
    const Reply reply = client.reply();
    EXPECT_EQ(reply.status, 500);
    EXPECT_EQ(reply.body.find("secret"), std::string::npos);
    const std::lock_guard guard(mutex);
    ASSERT_EQ(failures.size(), static_cast<std::size_t>(i + 1));
    EXPECT_NE(reply.body.find(failures.back().first), std::string::npos);
    EXPECT_EQ(failures.back().second, texts[i]);
  }
  client.send(get("/late"));
  EXPECT_EQ(client.reply().status, 200);
}

TEST(HttpServer, OwnAnswersHaveTheFormTheyAreGiven) {
  ServerOptions options;
  options.error = [](int status, std::string_view code, std::string_view) -> HttpResponse {
    if (code == "headers_too_large") throw std::runtime_error("the form fails");
    return {status, {{"X-Code", std::string(code)}}, "own"};
  };
  HttpServer server(std::move(options), echo);
  const Reply reply = ask(server.port(), "GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.body, "own");
  EXPECT_EQ(reply.headers.get("X-Code"), "bad_request");
  const Reply plain = ask(server.port(), "GET /" + std::string(9000, 'a'));
  EXPECT_EQ(plain.status, 431);
  EXPECT_EQ(
      plain.body,
      "{\"error\": {\"message\": \"head: expected at most 8192 bytes\", \"code\": \"headers_too_large\"}}\n");
}

TEST(HttpServer, TellsOfEachAnswer) {
  std::mutex mutex;
  std::vector<std::string> told;
  ServerOptions options;
  options.on_answer = [&](const HttpRequest& request, int status, std::uint64_t sent, double seconds) {
    const std::lock_guard guard(mutex);
    EXPECT_GT(sent, 0u);
    EXPECT_GE(seconds, 0);
    told.push_back(request.method + " " + request.path + " " + std::to_string(status));
  };
  HttpServer server(std::move(options), echo);
  Client client(server.port());
  client.send(get("/a") + "BAD\r\n\r\n");
  client.reply();
  client.reply();
  server.stop(1s);
  EXPECT_EQ(told, (std::vector<std::string>{"GET /a 200", "  400"}));
}

// ---- the server's thread ----

TEST(HttpServer, PostsInOrderAndAfterAWhile) {
  std::vector<int> order;
  std::atomic<bool> done = false;
  std::atomic<int> failures = 0;
  ServerOptions options;
  options.on_failure = [&](std::string_view id, std::string_view what) {
    EXPECT_EQ(id, "");
    EXPECT_EQ(what, "posted");
    ++failures;
  };
  HttpServer server(std::move(options), echo);
  server.post_after(60ms, [&] {
    order.push_back(4);
    done = true;
  });
  server.post_after(20ms, [&] { order.push_back(3); });
  server.post([&] { order.push_back(1); });
  server.post([&] { throw std::runtime_error("posted"); });
  server.post([&] { order.push_back(2); });
  ASSERT_TRUE(eventually([&] { return done.load(); }));
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(failures, 1);
  EXPECT_EQ(ask(server.port(), get("/")).status, 200);  // it goes on
}

}  // namespace
}  // namespace pom::net
