// Tests of who a client is behind proxies: those that are trusted are believed, and nobody else.
#include "pom/net/forwarded.h"

#include <gtest/gtest.h>

#include "pom/base/error.h"

namespace pom::net {
namespace {

std::string client(const std::vector<std::string>& proxies, const std::string& peer,
                   std::initializer_list<std::pair<std::string, std::string>> headers) {
  HttpRequest request;
  request.headers = headers;
  return TrustedProxies(proxies).client_of(request, peer);
}

TEST(Forwarded, NobodyIsBelievedUnlessTrusted) {
  EXPECT_EQ(client({}, "1.2.3.4", {{"X-Forwarded-For", "9.9.9.9"}}), "1.2.3.4");
  EXPECT_EQ(client({"10.0.0.1"}, "1.2.3.4", {{"X-Forwarded-For", "9.9.9.9"}}), "1.2.3.4");
  EXPECT_EQ(client({"10.0.0.1"}, "10.0.0.1", {{"X-Forwarded-For", "9.9.9.9"}}), "9.9.9.9");
  EXPECT_EQ(client({"10.0.0.1"}, "10.0.0.1", {}), "10.0.0.1");
  EXPECT_EQ(client({"unix"}, "unix", {{"X-Forwarded-For", "9.9.9.9"}}), "9.9.9.9");
}

TEST(Forwarded, TheLastThatIsNoProxyOfOurs) {
  const std::vector<std::string> ours = {"10.0.0.0/8", "::1"};
  // What the client says itself stands before.
  EXPECT_EQ(client(ours, "10.0.0.1", {{"X-Forwarded-For", "6.6.6.6, 9.9.9.9, 10.1.2.3"}}), "9.9.9.9");
  EXPECT_EQ(client(ours, "10.0.0.1", {{"X-Forwarded-For", "6.6.6.6"}, {"x-forwarded-for", "9.9.9.9"}}),
            "9.9.9.9");
  EXPECT_EQ(client(ours, "::1", {{"X-Forwarded-For", "10.1.1.1,10.1.1.2"}}), "10.1.1.1");
  EXPECT_EQ(client(ours, "::ffff:10.0.0.1", {{"X-Forwarded-For", "[2001:db8::1]:443"}}), "2001:db8::1");
  EXPECT_EQ(client(ours, "10.0.0.1", {{"X-Forwarded-For", "9.9.9.9:1234"}}), "9.9.9.9");
  for (const char* wrong :
       {"", "unknown", "_hidden", "1.2.3", "1.2.3.4.5", "[::1", "\"", "::g", ",,,", "a=b"})
    EXPECT_EQ(client(ours, "10.0.0.1", {{"X-Forwarded-For", wrong}}), "10.0.0.1") << wrong;
  EXPECT_EQ(client(ours, "10.0.0.1", {{"X-Forwarded-For", "9.9.9.9, unknown"}}), "10.0.0.1");
}

TEST(Forwarded, TheStandardsHeader) {
  const std::vector<std::string> ours = {"127.0.0.1"};
  EXPECT_EQ(client(ours, "127.0.0.1", {{"Forwarded", "for=9.9.9.9;proto=https;by=1.1.1.1"}}), "9.9.9.9");
  EXPECT_EQ(client(ours, "127.0.0.1", {{"Forwarded", "For=\"[2001:db8::7]:4711\""}}), "2001:db8::7");
  EXPECT_EQ(client(ours, "127.0.0.1", {{"Forwarded", "for=6.6.6.6, for=9.9.9.9"}}), "9.9.9.9");
  EXPECT_EQ(client(ours, "127.0.0.1", {{"Forwarded", "by=9.9.9.9"}}), "127.0.0.1");
  // Where both are said, the first of the two.
  EXPECT_EQ(client(ours, "127.0.0.1", {{"Forwarded", "for=6.6.6.6"}, {"X-Forwarded-For", "9.9.9.9"}}),
            "9.9.9.9");
}

TEST(Forwarded, WhatIsNoProxy) {
  for (const char* wrong : {"", "name", "10.0.0.0/33", "10.0.0.0/x", "10.0.0.0/", "::1/129", "*"})
    EXPECT_THROW(TrustedProxies({wrong}), Error) << wrong;
  EXPECT_TRUE(TrustedProxies().empty());
  EXPECT_TRUE(TrustedProxies({"0.0.0.0/0"}).trusts("8.8.8.8"));
  EXPECT_FALSE(TrustedProxies({"0.0.0.0/0"}).trusts("::1"));
}

}  // namespace
}  // namespace pom::net
