// Tests of the reader of requests: bodies by length and in chunks, their limits, and any cut of the bytes.
#include "pom/net/request_reader.h"

#include <gtest/gtest.h>

namespace pom::net {
namespace {

constexpr std::string_view chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

struct Outcome {
  RequestReader::State state;
  int status = 0;
  std::string body;
  std::size_t left = 0;  // bytes that were not taken
};

// Gives the bytes to a reader in pieces, as a connection does.
Outcome read(std::string_view bytes, std::uint64_t most, std::size_t piece) {
  RequestReader reader(1000);
  std::string buffer;
  using State = RequestReader::State;
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    buffer += bytes.substr(at, piece);
    while (true) {
      const std::size_t taken = reader.take(buffer);
      buffer.erase(0, taken);
      if (reader.state() == State::head_done)
        reader.begin_body(most);
      else if (taken == 0 || reader.state() == State::done || reader.state() == State::refused)
        break;
    }
  }
  const bool refused = reader.state() == State::refused;
  return {reader.state(), refused ? reader.refusal().status : 0, reader.request().body, buffer.size()};
}

// The same whatever the pieces, or the test fails.
Outcome read_any_way(std::string_view bytes, std::uint64_t most = 1000) {
  const Outcome whole = read(bytes, most, bytes.size());
  for (const std::size_t piece : {1u, 2u, 3u, 7u}) {
    const Outcome cut = read(bytes, most, piece);
    EXPECT_EQ(cut.state, whole.state) << piece << ": " << bytes;
    EXPECT_EQ(cut.status, whole.status) << piece << ": " << bytes;
    EXPECT_TRUE(whole.status != 0 || cut.body == whole.body) << piece << ": " << bytes;
  }
  return whole;
}

std::string with_length(std::size_t length, std::string_view body) {
  return "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(length) + "\r\n\r\n" +
         std::string(body);
}

TEST(RequestReader, WithoutABodyItIsDoneAtItsHead) {
  const Outcome read = read_any_way("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(read.state, RequestReader::State::done);
  EXPECT_EQ(read_any_way(with_length(0, "")).state, RequestReader::State::done);
}

TEST(RequestReader, TakesNoByteOfTheNextRequest) {
  EXPECT_EQ(read(with_length(3, "abcGET /"), 10, 1000).left, 5u);
  const Outcome next = read(std::string(chunked) + "1\r\na\r\n0\r\n\r\nGET /", 10, 1000);
  EXPECT_EQ(next.state, RequestReader::State::done);
  EXPECT_EQ(next.body, "a");
  EXPECT_EQ(next.left, 5u);
}

TEST(RequestReader, BodyByLength) {
  EXPECT_EQ(read_any_way(with_length(3, "abc")).body, "abc");
  EXPECT_EQ(read_any_way(with_length(4, "abc")).state, RequestReader::State::body);
  const Outcome fits = read_any_way(with_length(10, "0123456789"), 10);
  EXPECT_EQ(fits.state, RequestReader::State::done);
  EXPECT_EQ(fits.body, "0123456789");
  EXPECT_EQ(read_any_way(with_length(11, "0123456789x"), 10).status, 413);
  EXPECT_EQ(read_any_way(with_length(11, ""), 10).status, 413);  // before a byte of it
  EXPECT_EQ(read_any_way(with_length(1, "a"), 0).status, 413);
  EXPECT_EQ(read_any_way(with_length(0, ""), 0).status, 0);
}

Outcome chunks(std::string_view text, std::uint64_t most = 1000) {
  return read_any_way(std::string(chunked) + std::string(text), most);
}

TEST(RequestReader, BodyInChunks) {
  EXPECT_EQ(chunks("0\r\n\r\n").state, RequestReader::State::done);
  EXPECT_EQ(chunks("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").body, "abcde");
  EXPECT_EQ(chunks("A\r\n0123456789\r\n0\r\n\r\n").body, "0123456789");
  EXPECT_EQ(chunks("00a\r\n0123456789\r\n000\r\n\r\n").body, "0123456789");
  EXPECT_EQ(chunks("1;a=b;c=\"d\"\r\nx\r\n0;end\r\n\r\n").body, "x");
  EXPECT_EQ(chunks("1\r\nx\r\n0\r\nTrailer: 1\r\nHost: evil\r\n\r\n").body, "x");
  EXPECT_EQ(chunks("4\r\n\r\n\r\n\r\n0\r\n\r\n").body, "\r\n\r\n");
  for (const char* part : {"", "1", "1\r", "1\r\n", "1\r\nx", "1\r\nx\r", "1\r\nx\r\n", "0\r\n", "0\r\n\r",
                           "0\r\nA: b", "0\r\nA: b\r\n", "0\r\nA: b\r\n\r"})
    EXPECT_EQ(chunks(part).state, RequestReader::State::body) << part;
}

TEST(RequestReader, LimitsOfChunkedBodiesAreExact) {
  EXPECT_EQ(chunks("a\r\n0123456789\r\n0\r\n\r\n", 10).body, "0123456789");
  EXPECT_EQ(chunks("b\r\n", 10).status, 413);
  EXPECT_EQ(chunks("9\r\n012345678\r\n1\r\n9\r\n0\r\n\r\n", 10).body, "0123456789");
  EXPECT_EQ(chunks("9\r\n012345678\r\n2\r\n", 10).status, 413);
  EXPECT_EQ(chunks("a\r\n0123456789\r\n1\r\n", 10).status, 413);
  EXPECT_EQ(chunks("fffffffffffffff\r\n", 10).status, 413);
  EXPECT_EQ(chunks("0\r\n\r\n", 0).status, 0);
  EXPECT_EQ(chunks("1\r\n", 0).status, 413);
}

TEST(RequestReader, WhatIsNoChunk) {
  for (const char* text : {"\r\n",
                           "g\r\n",
                           "-1\r\n",
                           "+1\r\n",
                           "0x1\r\n",
                           " 1\r\n",
                           "1 \r\nx",
                           "1\n",
                           "1\rx",
                           "1\r\nxy",
                           "1\r\nx\n",
                           "1\r\nx\rx",
                           "1\r\nx1\r\n",
                           "1,\r\n",
                           "0000000000000001\r\n",
                           "ffffffffffffffff\r\n",
                           "1;a\nb\r\n",
                           "1;a\x01\r\n",
                           "0\r\nA: b\n",
                           "0\r\n\n",
                           "0\r\nA\x01: b\r\n",
                           ";\r\n"})
    EXPECT_EQ(chunks(text).status, 400) << text;
}

TEST(RequestReader, ExtensionsAndTrailersTogetherHaveALimit) {
  const std::string room(ChunkReader::max_extra - 2, 'e');
  EXPECT_EQ(chunks("1;" + room + "\r\nx\r\n").status, 0);
  EXPECT_EQ(chunks("1;" + room + "eee\r\n").status, 400);
  std::string many;
  for (int i = 0; i < 1000; ++i) many += "1;0123456789abcdef\r\nx\r\n";
  EXPECT_EQ(chunks(many, 1 << 20).status, 400);
  std::string trailers = "0\r\n";
  for (int i = 0; i < 2000; ++i) trailers += "Trailer: x\r\n";
  EXPECT_EQ(chunks(trailers).status, 400);
}

TEST(RequestReader, RefusesAHeadThatNeverEnds) {
  EXPECT_EQ(read_any_way("GET /" + std::string(2000, 'a')).status, 431);
  std::string many = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 1000; ++i) many += "A: b\r\n";
  EXPECT_EQ(read_any_way(many).status, 431);
}

}  // namespace
}  // namespace pom::net
