// Tests of the parts of addresses.
#include "pom/net/url.h"

#include <gtest/gtest.h>

namespace pom::net {
namespace {

using namespace std::string_literals;

TEST(PercentDecoded, WholeEscapesOfUtf8) {
  EXPECT_EQ(percent_decoded("a%20b%2fc"), "a b/c");
  EXPECT_EQ(percent_decoded("%C3%A4"), "ä");
  EXPECT_EQ(percent_decoded("+"), "+");
  EXPECT_EQ(percent_decoded(""), "");
  EXPECT_EQ(percent_decoded("%252e"), "%2e");  // once, not twice
}

TEST(PercentDecoded, NothingOfBrokenOnes) {
  for (const char* text : {"%", "%4", "a%", "a%4", "%4g", "%g4", "%-1", "%+1", "% 1", "%00", "a%00b", "%ff",
                           "%c3", "%c3%28", "%c0%ae", "%ed%a0%80", "%f5%80%80%80", "\xff"})
    EXPECT_FALSE(percent_decoded(text)) << text;
  EXPECT_FALSE(percent_decoded("a\0b"s));
}

TEST(PercentEncoded, ComesBack) {
  EXPECT_EQ(percent_encoded("a b/ä~"), "a%20b%2F%C3%A4~");
  const std::string text = "100 % +&=?#\n\"ß";
  EXPECT_EQ(percent_decoded(percent_encoded(text)), text);
}

TEST(ParseQuery, PairsInOrder) {
  EXPECT_EQ(parse_query(""), Query{});
  EXPECT_EQ(parse_query("a=1&b=x+y&a=%2B"), (Query{{"a", "1"}, {"b", "x y"}, {"a", "+"}}));
  EXPECT_EQ(parse_query("a&b=&=c&&d=e=f&"), (Query{{"a", ""}, {"b", ""}, {"", "c"}, {"d", "e=f"}}));
  EXPECT_EQ(parse_query("prompt=two%0Alines"), (Query{{"prompt", "two\nlines"}}));
  EXPECT_FALSE(parse_query("a=%"));
  EXPECT_FALSE(parse_query("%00=1"));
  EXPECT_FALSE(parse_query("a=1&b=%zz"));
}

TEST(PlainPath, NoWayUp) {
  for (const char* path : {"/", "/a", "/a/b/", "//", "/...", "/.hidden", "/a..b", "/a/..b/c..", "/ä ö"})
    EXPECT_TRUE(plain_path(path)) << path;
  for (const char* path : {"", "a", "*", "/..", "/.", "/../a", "/a/..", "/a/../b", "/a/./b", "/..\\a",
                           "/a\\..", "/a\\..\\b", "/a\nb", "/a\tb", "/\x7f"})
    EXPECT_FALSE(plain_path(path)) << path;
}

TEST(ParseHost, NamesAddressesPorts) {
  const auto text = [](const char* host) -> std::string {
    const auto parsed = parse_host(host);
    return parsed ? parsed->host + " " + parsed->port : "refused";
  };
  EXPECT_EQ(text("LocalHost"), "localhost ");
  EXPECT_EQ(text("localhost:8000"), "localhost 8000");
  EXPECT_EQ(text("127.0.0.1:80"), "127.0.0.1 80");
  EXPECT_EQ(text("[::1]"), "[::1] ");
  EXPECT_EQ(text("[::1]:65535"), "[::1] 65535");
  EXPECT_EQ(text("a_b-c.example.:1"), "a_b-c.example. 1");
  EXPECT_EQ(text("localhost:"), "localhost ");
  for (const char* host :
       {"",   ":80",    "a:b", "a:65536", "a:-1",      "a:+1", "a:123456", "a:80:80", "::1",     "[::1",
        "[]", "[g::1]", "a b", "a/b",     "user@host", "a,b",  "a\"",      "[::1]x",  "[::1]:x", "ä"})
    EXPECT_EQ(text(host), "refused") << host;
  EXPECT_EQ(text(std::string(256, 'a').c_str()), "refused");
}

TEST(ParseTarget, ThreeForms) {
  const auto origin = parse_target("/a%20b?x=1+2");
  ASSERT_TRUE(origin);
  EXPECT_EQ(origin->path, "/a b");
  EXPECT_EQ(origin->query, (Query{{"x", "1 2"}}));
  EXPECT_EQ(origin->host, "");

  const auto absolute = parse_target("HTTP://Example.org:81/a?b");
  ASSERT_TRUE(absolute);
  EXPECT_EQ(absolute->path, "/a");
  EXPECT_EQ(absolute->host, "Example.org:81");
  EXPECT_EQ(parse_target("http://h")->path, "/");
  EXPECT_EQ(parse_target("http://h?q=1")->query, (Query{{"q", "1"}}));
  EXPECT_EQ(parse_target("/a?b=http://c/d")->path, "/a");
  EXPECT_EQ(parse_target("*")->path, "*");
}

TEST(ParseTarget, WhatIsNoTarget) {
  for (const char* target : {"",       "a",         "a/b",       "**",          "/a b",        "/a#b",
                             "/%",     "/a?%",      "/%00",      "/..",         "/%2e%2e/",    "/.%2e",
                             "/%5c..", "ftp://h/",  "http:///a", "http://u@h/", "http://h:x/", "http:/h/",
                             "h:80",   "/\xc3\xa4", "/%ff",      "/a\x01"})
    EXPECT_FALSE(parse_target(target)) << target;
  EXPECT_FALSE(parse_target("/a\0b"s));
}

}  // namespace
}  // namespace pom::net
