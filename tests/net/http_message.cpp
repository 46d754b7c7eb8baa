// Tests of headers and requests as handlers see them.
#include "pom/net/http_message.h"

#include <gtest/gtest.h>

namespace pom::net {
namespace {

TEST(Headers, NamesHaveNoCase) {
  Headers headers{{"Content-Type", "text/plain"}};
  EXPECT_EQ(headers.find("content-TYPE"), "text/plain");
  EXPECT_EQ(headers.get("CONTENT-TYPE"), "text/plain");
  EXPECT_FALSE(headers.find("Content-Typ"));
  EXPECT_FALSE(headers.find("Content-Types"));
  EXPECT_EQ(headers.get("Host", "none"), "none");
}

TEST(Headers, SetReplacesAllAndKeepsTheFirstPlace) {
  Headers headers;
  headers.add("A", "1");
  headers.add("B", "2");
  headers.add("a", "3");
  EXPECT_EQ(headers.get("a"), "1");
  EXPECT_EQ(headers.count("A"), 2u);
  headers.set("a", "4");
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(headers.all(), (Pairs{{"A", "4"}, {"B", "2"}}));
  headers.set("C", "5");
  EXPECT_EQ(headers.all(), (Pairs{{"A", "4"}, {"B", "2"}, {"C", "5"}}));
}

TEST(HttpRequest, TheFirstQueryValueOfItsExactName) {
  HttpRequest request;
  request.query = {{"a", "1"}, {"A", "2"}, {"a", "3"}, {"empty", ""}};
  EXPECT_EQ(request.query_value("a"), "1");
  EXPECT_EQ(request.query_value("A"), "2");
  EXPECT_EQ(request.query_value("empty"), "");
  EXPECT_FALSE(request.query_value("b"));
}

TEST(Names, OnlyLettersOfAsciiHaveCase) {
  EXPECT_TRUE(same_name("AbC-1", "aBc-1"));
  EXPECT_FALSE(same_name("@", "`"));
  EXPECT_FALSE(same_name("[", "{"));
  EXPECT_EQ(lowered("ÄbC"), "Äbc");
}

}  // namespace
}  // namespace pom::net
