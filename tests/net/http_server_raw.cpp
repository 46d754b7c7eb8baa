// Raw requests, most of them hostile, each with its exact outcome: the statuses that come back, what handlers
// saw, and whether the connection goes on afterwards.
#include "tests/net/net_support.h"

#include "pom/net/http_server.h"

namespace pom::net {
namespace {

using namespace std::string_literals;

struct Case {
  std::string bytes;
  const char* statuses;   // "200 400"
  const char* seen = "";  // by handlers, with commas between
};

const std::string host = "Host: localhost\r\n";
const std::string chunked = "POST /c HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n";

// A request line with a proper rest; a header with a proper rest; a body by length with headers of its own.
std::string line(const std::string& text) {
  return text + "\r\n" + host + "\r\n";
}
std::string field(const std::string& text) {
  return "GET /f HTTP/1.1\r\n" + host + text + "\r\n\r\n";
}
std::string body(const std::string& fields, const std::string& text) {
  return "POST /b HTTP/1.1\r\n" + host + fields + "\r\n\r\n" + text;
}

// After these the connection goes on.
std::vector<Case> good() {
  return {
      {line("GET / HTTP/1.1"), "200", "GET / 0"},
      {"\r\n" + line("GET /after-empty-line HTTP/1.1"), "200", "GET /after-empty-line 0"},
      {"\r\n\r\n\r\n" + line("GET /after-three HTTP/1.1"), "200", "GET /after-three 0"},
      {line("GET /a%20b%2Fc HTTP/1.1"), "200", "GET /a b/c 0"},
      {line("GET /%c3%a4 HTTP/1.1"), "200", "GET /ä 0"},
      {line("GET /%252e%252e/ HTTP/1.1"), "200", "GET /%2e%2e/ 0"},
      {line("GET /...//x HTTP/1.1"), "200", "GET /...//x 0"},
      {line("GET /?a=1&b=x+y&c=%2B HTTP/1.1"), "200", "GET /?a=1&b=x y&c=+ 0"},
      {line("GET /?a=../..&b=/ HTTP/1.1"), "200", "GET /?a=../..&b=/ 0"},
      {line("GET /a?b?c=d HTTP/1.1"), "200", "GET /a?b?c=d 0"},
      {line("GET http://localhost/absolute HTTP/1.1"), "200", "GET /absolute 0"},
      {line("GET http://localhost HTTP/1.1"), "200", "GET / 0"},
      {line("GET HTTPS://localhost:1/x?y HTTP/1.1"), "200", "GET /x?y= 0"},
      {line("OPTIONS * HTTP/1.1"), "200", "OPTIONS * 0"},
      {line("DELETE /x HTTP/1.1"), "200", "DELETE /x 0"},
      {line("MADE-UP /x HTTP/1.1"), "200", "MADE-UP /x 0"},
      {line("TRACE /x HTTP/1.1"), "200", "TRACE /x 0"},
      {"GET /ten HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "200", "GET /ten 0"},
      {"GET /h HTTP/1.1\r\nhOsT:localhost\r\n\r\n", "200", "GET /h 0"},
      {"GET /h HTTP/1.1\r\nHost: \t [::1]:80 \t\r\n\r\n", "200", "GET /h 0"},
      {field("X: a\tb\xc3\xa4"), "200", "GET /f 0"},
      {field("X:"), "200", "GET /f 0"},
      {field("Connection: keep-alive, Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk"), "200",
       "GET /f 0"},
      {field("Content-Length: 0"), "200", "GET /f 0"},
      {field("Content-Length: 3") + "abc", "200", "GET /f 3"},
      {body("Content-Length: 3", "abc"), "200", "POST /b 3"},
      {body("Content-Length: 003", "abc"), "200", "POST /b 3"},
      {body("content-LENGTH:3", "abc"), "200", "POST /b 3"},
      {body("Transfer-Encoding: CHUNKED", "0\r\n\r\n"), "200", "POST /b 0"},
      {chunked + "3\r\nabc\r\n0\r\n\r\n", "200", "POST /c 3"},
      {chunked + "1\r\na\r\n1\r\nb\r\n0\r\n\r\n", "200", "POST /c 2"},
      {chunked + "A;x=y\r\n0123456789\r\n0\r\n\r\n", "200", "POST /c 10"},
      {chunked + "1;x=\"a;\\\"b\\\\\";y=\\z\r\n0\r\n0;z=\"\"\r\n\r\n", "200", "POST /c 1"},
      {chunked + "0\r\nHost: evil\r\nContent-Length: 9\r\n\r\n", "200", "POST /c 0"},
      {line("GET /1 HTTP/1.1") + line("GET /2 HTTP/1.1"), "200 200", "GET /1 0,GET /2 0"},
      {body("Content-Length: 3", "abc") + line("GET /2 HTTP/1.1"), "200 200", "POST /b 3,GET /2 0"},
      {chunked + "0\r\n\r\n" + line("GET /2 HTTP/1.1"), "200 200", "POST /c 0,GET /2 0"},
      // A request that hides in the body of another is no request.
      {body("Content-Length: 39", line("GET /hidden HTTP/1.1").substr(0, 39)), "200", "POST /b 39"},
      {chunked + "29\r\n" + line("GET /hidden HTTP/1.1").substr(0, 41) + "\r\n0\r\n\r\n", "200",
       "POST /c 41"},
  };
}

// After these it does not. What follows in the same bytes is no request either.
std::vector<Case> bad() {
  const std::string next = line("GET /smuggled HTTP/1.1");
  std::vector<Case> cases = {
      // ---- the request line ----
      {line("GET /"), "400"},
      {line("GET"), "400"},
      {line(" GET / HTTP/1.1"), "400"},
      {line("GET  / HTTP/1.1"), "400"},
      {line("GET /  HTTP/1.1"), "400"},
      {line("GET / HTTP/1.1 "), "400"},
      {line("GET\t/ HTTP/1.1"), "400"},
      {line("GET /a b HTTP/1.1"), "400"},
      {line("G(T / HTTP/1.1"), "400"},
      {line("G\xc3\x84T / HTTP/1.1"), "400"},
      {line(std::string(33, 'M') + " / HTTP/1.1"), "400"},
      {line("GET / http/1.1"), "400"},
      {line("GET / HTTP/1.1.1"), "400"},
      {line("GET / HTTP/11"), "400"},
      {line("GET / HTTP/0.9"), "505"},
      {line("GET / HTTP/1.2"), "505"},
      {line("GET / HTTP/2.0"), "505"},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505"},
      {"\x16\x03\x01\x02"s, "400"},  // TLS
      {"\0\0\0\0"s, "400"},
      {"SSH-2.0-OpenSSH_9.2\r\n\r\n", "400"},
      // ---- the target ----
      {line("GET /../etc/passwd HTTP/1.1"), "400"},
      {line("GET /a/../b HTTP/1.1"), "400"},
      {line("GET /a/./b HTTP/1.1"), "400"},
      {line("GET /.. HTTP/1.1"), "400"},
      {line("GET /%2e%2e/etc HTTP/1.1"), "400"},
      {line("GET /.%2E/etc HTTP/1.1"), "400"},
      {line("GET /a%2f..%2fb HTTP/1.1"), "400"},
      {line("GET /..%5cx HTTP/1.1"), "400"},
      {line("GET /..\\x HTTP/1.1"), "400"},
      {line("GET /%00 HTTP/1.1"), "400"},
      {line("GET /a%00.png HTTP/1.1"), "400"},
      {line("GET /?a=%00 HTTP/1.1"), "400"},
      {line("GET /%0d%0aX:y HTTP/1.1"), "400"},
      {line("GET /% HTTP/1.1"), "400"},
      {line("GET /%4 HTTP/1.1"), "400"},
      {line("GET /%zz HTTP/1.1"), "400"},
      {line("GET /?a=%g0 HTTP/1.1"), "400"},
      {line("GET /%ff HTTP/1.1"), "400"},
      {line("GET /%c0%ae%c0%ae/ HTTP/1.1"), "400"},
      {line("GET /\xc3\xa4 HTTP/1.1"), "400"},
      {line("GET /a#b HTTP/1.1"), "400"},
      {line("GET a HTTP/1.1"), "400"},
      {line("GET * HTTP/1.1"), "400"},
      {line("GET ftp://localhost/ HTTP/1.1"), "400"},
      {line("GET http:///x HTTP/1.1"), "400"},
      {line("GET http://user:key@localhost/ HTTP/1.1"), "400"},
      {line("CONNECT localhost:80 HTTP/1.1"), "400"},
      // ---- line ends and control characters ----
      {"GET / HTTP/1.1\nHost: a\n\n", "400"},
      {"GET / HTTP/1.1\r\nHost: a\n\r\n", "400"},
      {"GET / HTTP/1.1\rHost: a\r\r", "400"},
      {"GET / HTTP/1.1\r\n\rHost: a\r\n\r\n", "400"},
      {field("X: a\rb"), "400"},
      {field("X: a\0b"s), "400"},
      {field("X: a\x01"), "400"},
      {field("X: \x7f"), "400"},
      // ---- headers ----
      {"GET / HTTP/1.1\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\nHost:\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\nHost: user@a\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\nHost: a:99999\r\n\r\n", "400"},
      {"GET http://a/ HTTP/1.1\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\nHost : a\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\n Host: a\r\n\r\n", "400"},
      {field("X: a\r\n folded"), "400"},
      {field("X: a\r\n\tfolded"), "400"},
      {field("no colon"), "400"},
      {field(": no name"), "400"},
      {field("X Y: a"), "400"},
      {field("X\t: a"), "400"},
      {field("Authorization: a\r\nAuthorization: b"), "400"},
      {field("Expect: the-unexpected"), "417"},
      // ---- lengths ----
      {body("Content-Length: 3\r\nContent-Length: 3", "abc"), "400"},
      {body("Content-Length: 3\r\nContent-Length: 30", "abc"), "400"},
      {body("Content-Length: 3, 3", "abc"), "400"},
      {body("Content-Length: -1", ""), "400"},
      {body("Content-Length: +3", "abc"), "400"},
      {body("Content-Length: 0x3", "abc"), "400"},
      {body("Content-Length: 3 3", "abc"), "400"},
      {body("Content-Length:", "abc"), "400"},
      {body("Content-Length: 18446744073709551619", "abc"), "400"},
      {body("Content-Length: 101", ""), "413"},
      {body("Content-Length: 999999999999999999", ""), "413"},
      {body("Content-Length: 3\r\nTransfer-Encoding: chunked", "0\r\n\r\n"), "400"},
      {body("Transfer-Encoding: chunked\r\nContent-Length: 5", "0\r\n\r\n"), "400"},
      {body("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "0\r\n\r\n"), "400"},
      {body("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", "0\r\n\r\n"), "400"},
      {body("Transfer-Encoding: gzip, chunked", "0\r\n\r\n"), "501"},
      {body("Transfer-Encoding: chunked, identity", "0\r\n\r\n"), "501"},
      {body("Transfer-Encoding: xchunked", "0\r\n\r\n"), "501"},
      {body("Transfer-Encoding: \x0b"
            "chunked",
            "0\r\n\r\n"),
       "400"},
      {body("Transfer-Encoding : chunked", "0\r\n\r\n"), "400"},
      {body("Transfer-Encoding:\r\n chunked", "0\r\n\r\n"), "400"},
      {"POST /b HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
      // ---- chunks ----
      {chunked + "g\r\n", "400"},
      {chunked + "-1\r\n", "400"},
      {chunked + "0x1\r\na\r\n", "400"},
      {chunked + " 1\r\na\r\n", "400"},
      {chunked + "1 \r\na\r\n", "400"},
      {chunked + "\r\n", "400"},
      {chunked + "1\na\r\n", "400"},
      {chunked + "1\r\nab\r\n", "400"},
      {chunked + "1\r\na1\r\n", "400"},
      {chunked + "1\r\na\n", "400"},
      {chunked + "1;a\nb\r\n", "400"},
      {chunked + "0;a=\"\r\nabc\r\n1\r\ne\r\n0\r\n\r\n", "400"},
      {chunked + "1;a=\"b\\\"\r\na\r\n0\r\n\r\n", "400"},
      {chunked + "0\r\nA: b\n\r\n", "400"},
      {chunked + "65\r\n", "413"},
      {chunked + "64\r\n" + std::string(100, 'x') + "\r\n1\r\n", "413"},
      {chunked + "ffffffffffffffff\r\n", "400"},
      {chunked + "fffffffffffffff\r\n", "413"},
      {chunked + "10000000000000001\r\n", "400"},
      {chunked + "1;" + std::string(20'000, 'e') + "\r\na\r\n0\r\n\r\n", "400"},
      // ---- sizes ----
      {"GET /" + std::string(2000, 'a'), "431"},
      {field("X: " + std::string(2000, 'x')), "431"},
      {"GET / HTTP/1.1\r\n" +
           [] {
             std::string many;
             for (int i = 0; i < 500; ++i) many += "A: b\r\n";
             return many;
           }(),
       "431"},
  };
  for (Case& each : cases) each.bytes += next;
  return cases;
}

class RawRequests : public testing::Test {
 protected:
  RawRequests() : server(options(), [this](const std::shared_ptr<Exchange>& exchange) { note(exchange); }) {}

  static ServerOptions options() { return {.head_bytes = 1000, .body_bytes = 100}; }

  void note(const std::shared_ptr<Exchange>& exchange) {
    {
      const std::lock_guard guard(mutex);
      noted += (noted.empty() ? "" : ",") + seen(exchange->request());
    }
    echo(exchange);
  }

  std::string take_noted() {
    const std::lock_guard guard(mutex);
    return std::exchange(noted, {});
  }

  // The statuses of as many answers as the case expects.
  static std::string statuses(Client& client, std::string_view expected) {
    std::string text;
    do {
      const Reply reply = client.reply();
      text += (text.empty() ? "" : " ") + std::to_string(reply.status);
      if (reply.status == 0) break;
    } while (text.size() < expected.size());
    return text;
  }

  std::mutex mutex;
  std::string noted;
  HttpServer server;
};

TEST_F(RawRequests, TheConnectionGoesOn) {
  for (const Case& each : good()) {
    Client client(server.port());
    client.send(each.bytes);
    EXPECT_EQ(statuses(client, each.statuses), each.statuses) << each.bytes;
    EXPECT_EQ(take_noted(), each.seen) << each.bytes;
    client.send(get("/next"));
    EXPECT_EQ(client.reply().body, "GET /next 0") << each.bytes;
    take_noted();
  }
}

TEST_F(RawRequests, TheConnectionEnds) {
  for (const Case& each : bad()) {
    Client client(server.port());
    client.send(each.bytes);
    EXPECT_EQ(statuses(client, each.statuses), each.statuses) << each.bytes;
    EXPECT_TRUE(client.closed()) << each.bytes << "\nand then: " << client.got();
    EXPECT_EQ(take_noted(), each.seen) << each.bytes;
  }
}

// The same byte by byte: nothing depends on how the network cuts.
TEST_F(RawRequests, InTheSmallestPieces) {
  const auto slowly = [&](const Case& each) {
    Client client(server.port());
    std::string_view bytes = each.bytes;
    for (; !bytes.empty(); bytes.remove_prefix(1))
      if (!client.send(bytes.substr(0, 1))) break;
    EXPECT_EQ(statuses(client, each.statuses), each.statuses) << each.bytes;
    EXPECT_EQ(take_noted(), each.seen) << each.bytes;
  };
  for (const Case& each : good()) slowly(each);
  for (const Case& each : bad())
    if (each.bytes.size() < 200) slowly(each);
}

}  // namespace
}  // namespace pom::net
