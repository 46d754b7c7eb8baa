// Tests of the first lines of answers.
#include "pom/net/response_head.h"

#include <gtest/gtest.h>

namespace pom::net {
namespace {

constexpr std::time_t then = 784111777;

TEST(HttpDate, AsInTheStandard) {
  EXPECT_EQ(http_date(then), "Sun, 06 Nov 1994 08:49:37 GMT");
  EXPECT_EQ(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
}

TEST(ResponseHead, TheWholeText) {
  EXPECT_EQ(response_head(200, {{"Content-Type", "text/plain"}}, {.length = 3}, then),
            "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Type: text/plain\r\n"
            "Content-Length: 3\r\n\r\n");
  EXPECT_EQ(response_head(404, {}, {.close = true, .chunked = true}, then),
            "HTTP/1.1 404 Not Found\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nTransfer-Encoding: chunked\r\n"
            "Connection: close\r\n\r\n");
  EXPECT_EQ(response_head(599, {}, {.http11 = false}, then),
            "HTTP/1.0 599 Unknown\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nConnection: keep-alive\r\n\r\n");
}

TEST(ResponseHead, NoTextOfOthersMakesASecondHeader) {
  const std::string head = response_head(200,
                                         {{"X", "a\r\nEvil: 1"},
                                          {"Y\r\nEvil", "2"},
                                          {"", "3"},
                                          {"Z Z", "4"},
                                          {"content-length", "5"},
                                          {"CONNECTION", "upgrade"},
                                          {"Transfer-encoding", "gzip"}},
                                         {}, then);
  EXPECT_EQ(head, "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nX: a  Evil: 1\r\n\r\n");
}

TEST(HasNoBody, OfTheseAlone) {
  for (const int status : {100, 101, 204, 304}) EXPECT_TRUE(has_no_body(status)) << status;
  for (const int status : {200, 206, 302, 400, 404, 500}) EXPECT_FALSE(has_no_body(status)) << status;
}

}  // namespace
}  // namespace pom::net
