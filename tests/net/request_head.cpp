// Tests of how heads are found and read.
#include "pom/net/request_head.h"

#include <gtest/gtest.h>

namespace pom::net {
namespace {

constexpr std::string_view plain = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

// The status with which a head is refused, or 0; the bytes come one by one.
int scanned(std::string_view bytes, std::size_t most, HeadScan& scan) {
  for (std::size_t size = 1; size <= bytes.size(); ++size)
    if (const auto refused = scan.look(bytes.substr(0, size), most)) return refused->status;
  return 0;
}

TEST(HeadScan, FindsTheEndHoweverTheBytesAreCut) {
  for (std::size_t cut = 0; cut <= plain.size(); ++cut) {
    HeadScan scan;
    EXPECT_FALSE(scan.look(plain.substr(0, cut), 100));
    EXPECT_EQ(scan.complete(), cut == plain.size()) << cut;
    const std::string more = std::string(plain) + "GET /next";
    EXPECT_FALSE(scan.look(more, 100));
    ASSERT_TRUE(scan.complete());
    EXPECT_EQ(scan.size(), plain.size());
    EXPECT_EQ(scan.head(more), plain.substr(0, plain.size() - 2));
  }
}

TEST(HeadScan, EmptyLinesBeforeItArePassedOver) {
  const std::string bytes = "\r\n\r\n" + std::string(plain);
  HeadScan scan;
  EXPECT_FALSE(scan.look("\r\n\r\n", 100));
  EXPECT_FALSE(scan.begun());
  EXPECT_FALSE(scan.look(bytes, 100));
  EXPECT_TRUE(scan.begun());
  ASSERT_TRUE(scan.complete());
  EXPECT_EQ(scan.size(), bytes.size());
  EXPECT_EQ(scan.head(bytes), plain.substr(0, plain.size() - 2));
}

TEST(HeadScan, TheLimitIsExact) {
  HeadScan fits, over;
  EXPECT_EQ(scanned(plain, plain.size(), fits), 0);
  EXPECT_TRUE(fits.complete());
  EXPECT_EQ(scanned(plain, plain.size() - 1, over), 431);
  HeadScan full;  // no byte more is waited for than there may be
  EXPECT_FALSE(full.look(plain.substr(0, 9), 10));
  EXPECT_TRUE(full.look(plain.substr(0, 10), 10));
}

TEST(HeadScan, RefusesAtTheFirstWrongByte) {
  const auto refused_at = [](std::string_view bytes) -> std::size_t {
    HeadScan scan;
    for (std::size_t size = 1; size <= bytes.size(); ++size)
      if (scan.look(bytes.substr(0, size), 1000)) return size;
    return 0;
  };
  EXPECT_EQ(refused_at("\x16\x03\x01"), 1u);  // TLS
  EXPECT_EQ(refused_at("GET / HTTP/1.1\n"), 15u);
  EXPECT_EQ(refused_at("GET / HTTP/1.1\rH"), 16u);
  EXPECT_EQ(refused_at("GET / HTTP/1.1\r\r"), 16u);
  EXPECT_EQ(refused_at("GET / HTTP/1.1\r\n x"), 17u);
  EXPECT_EQ(refused_at("GET / HTTP/1.1\r\nA: b\r\n\tc"), 23u);
  EXPECT_EQ(refused_at(" GET"), 1u);
  EXPECT_EQ(refused_at("\n"), 1u);
  EXPECT_EQ(refused_at(std::string_view("GET /\0", 6)), 6u);
  EXPECT_EQ(refused_at("GET /\x7f"), 6u);
  EXPECT_EQ(refused_at("GET / HTTP/1.1\r\nA:\tb\xc3\xa4\r\n"), 0u);  // a tab and old letters within a value
}

struct Read {
  std::optional<Refusal> refused;
  HttpRequest request;
  Framing framing;
};

Read read(std::string_view lines) {
  std::string head;
  for (const char c : lines) head += c == '\n' ? "\r\n" : std::string(1, c);
  Read result;
  result.refused = parse_head(head, result.request, result.framing);
  return result;
}

int status(std::string_view lines) {
  const Read result = read(lines);
  return result.refused ? result.refused->status : 0;
}

TEST(ParseHead, LineHeadersAndFraming) {
  const Read result = read("POST /a%20b?c=d HTTP/1.1\nhost: h\nContent-LENGTH: 12\nX:\t a b \t\nEmpty:\n");
  ASSERT_FALSE(result.refused) << result.refused->message;
  EXPECT_EQ(result.request.method, "POST");
  EXPECT_EQ(result.request.path, "/a b");
  EXPECT_EQ(result.request.query_value("c"), "d");
  EXPECT_EQ(result.request.headers.get("Host"), "h");
  EXPECT_EQ(result.request.headers.get("X"), "a b");
  EXPECT_EQ(result.request.headers.find("Empty"), "");
  EXPECT_EQ(result.framing.length, 12u);
  EXPECT_TRUE(result.framing.http11 && result.framing.keep_alive && result.framing.has_body());
  EXPECT_FALSE(result.framing.chunked || result.framing.expects_continue);
}

TEST(ParseHead, TheHostOfTheTargetCounts) {
  const Read result = read("GET http://evil.example/a HTTP/1.1\nHost: localhost\n");
  ASSERT_FALSE(result.refused);
  EXPECT_EQ(result.request.headers.get("Host"), "evil.example");
  EXPECT_EQ(result.request.headers.count("Host"), 1u);
}

TEST(ParseHead, WhatBecomesOfTheConnection) {
  const auto kept = [](std::string_view lines) { return read(lines).framing.keep_alive; };
  EXPECT_TRUE(kept("GET / HTTP/1.1\nHost: a\n"));
  EXPECT_FALSE(kept("GET / HTTP/1.1\nHost: a\nConnection: close\n"));
  EXPECT_FALSE(kept("GET / HTTP/1.1\nHost: a\nConnection: TE, Close\n"));
  EXPECT_FALSE(kept("GET / HTTP/1.1\nHost: a\nConnection: TE\nConnection: close\n"));
  EXPECT_TRUE(kept("GET / HTTP/1.1\nHost: a\nConnection: closed, keep\n"));
  EXPECT_FALSE(kept("GET / HTTP/1.0\n"));
  EXPECT_TRUE(kept("GET / HTTP/1.0\nConnection: Keep-Alive\n"));
}

TEST(ParseHead, Refusals) {
  EXPECT_EQ(status("GET / HTTP/1.1\nHost: a\n"), 0);
  EXPECT_EQ(status("GET / HTTP/1.0\n"), 0);
  EXPECT_EQ(status("GET / HTTP/1.1\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\nHost:\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\nHost: a\nHost: a\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.2\nHost: a\n"), 505);
  EXPECT_EQ(status("GET / HTTP/2.0\nHost: a\n"), 505);
  EXPECT_EQ(status("GET / http/1.1\nHost: a\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.11\nHost: a\n"), 400);
  EXPECT_EQ(status("GET /\n"), 400);
  EXPECT_EQ(status("GET\n"), 400);
  EXPECT_EQ(status("GET  / HTTP/1.1\nHost: a\n"), 400);
  EXPECT_EQ(status("GET /  HTTP/1.1\nHost: a\n"), 400);
  EXPECT_EQ(status("G(T / HTTP/1.1\nHost: a\n"), 400);
  EXPECT_EQ(status(std::string(32, 'A') + " / HTTP/1.1\nHost: a\n"), 0);
  EXPECT_EQ(status(std::string(33, 'A') + " / HTTP/1.1\nHost: a\n"), 400);
  EXPECT_EQ(status("GET * HTTP/1.1\nHost: a\n"), 400);
  EXPECT_EQ(status("OPTIONS * HTTP/1.1\nHost: a\n"), 0);
  EXPECT_EQ(status("CONNECT a:80 HTTP/1.1\nHost: a\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\nHost: a\nNo colon\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\nHost : a\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\nHost: a\n: b\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\nHost: a\nExpect: 200-ok\n"), 417);
}

TEST(ParseHead, LengthsAndEncodings) {
  const auto post = [](std::string_view fields) {
    return status("POST / HTTP/1.1\nHost: a\n" + std::string(fields) + "\n");
  };
  EXPECT_EQ(post("Content-Length: 0"), 0);
  EXPECT_EQ(post("Content-Length: 999999999999999999"), 0);
  for (const char* length : {"", "-1", "+1", "1 1", "1,1", "0x1", "1e3", "1.0", "9999999999999999999", "a"})
    EXPECT_EQ(post("Content-Length: " + std::string(length)), 400) << length;
  EXPECT_EQ(post("Content-Length: 1\nContent-Length: 1"), 400);
  EXPECT_EQ(post("Transfer-Encoding: chunked"), 0);
  EXPECT_EQ(post("Transfer-Encoding: Chunked"), 0);
  EXPECT_EQ(post("Transfer-Encoding: chunked\nContent-Length: 1"), 400);
  EXPECT_EQ(post("Content-Length: 0\nTransfer-Encoding: chunked"), 400);
  EXPECT_EQ(post("Transfer-Encoding: chunked\nTransfer-Encoding: chunked"), 400);
  for (const char* encoding :
       {"gzip", "gzip, chunked", "chunked, gzip", "identity", "xchunked", "chunked;q=1", ""})
    EXPECT_EQ(post("Transfer-Encoding: " + std::string(encoding)), 501) << encoding;
  EXPECT_EQ(status("POST / HTTP/1.0\nTransfer-Encoding: chunked\n"), 400);
  for (const char* name : {"Content-Type", "Authorization", "X-API-Key", "Origin", "Expect"})
    EXPECT_EQ(post(std::string(name) + ": a\n" + name + ": a"), 400) << name;
}

TEST(ParseHead, ExpectIsForHttp11) {
  EXPECT_TRUE(read("POST / HTTP/1.1\nHost: a\nExpect: 100-Continue\n").framing.expects_continue);
  EXPECT_FALSE(read("POST / HTTP/1.0\nExpect: 100-continue\n").framing.expects_continue);
}

}  // namespace
}  // namespace pom::net
