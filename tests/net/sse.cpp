// Tests of server-sent events: their text, the ring, and a channel with readers.
#include "pom/net/sse.h"

#include <gtest/gtest.h>
#include <thread>

#include "pom/base/error.h"

namespace pom::net {
namespace {

TEST(SseRecord, ItsText) {
  EXPECT_EQ(sse_record(7, "progress", "{\"a\": 1}"), "id: 7\nevent: progress\ndata: {\"a\": 1}\n\n");
  EXPECT_EQ(sse_record(std::nullopt, "", "[DONE]"), "data: [DONE]\n\n");
  EXPECT_EQ(sse_comment(), ":\n\n");
  EXPECT_EQ(sse_comment("ping"), ": ping\n\n");
}

TEST(SseRecord, OneLineEach) {
  for (const char* text : {"a\nb", "a\r", "\n"}) {
    EXPECT_THROW(sse_record(1, "e", text), Error);
    EXPECT_THROW(sse_record(1, text, "d"), Error);
    EXPECT_THROW(sse_comment(text), Error);
  }
  EXPECT_THROW(sse_record(1, "e", std::string_view("a\0b", 3)), Error);
}

TEST(SseHeaders, NothingKeepsOrCollectsThem) {
  EXPECT_EQ(sse_headers().get("Content-Type"), "text/event-stream");
  EXPECT_EQ(sse_headers().get("Cache-Control"), "no-store");
  EXPECT_EQ(sse_headers().get("X-Accel-Buffering"), "no");
}

TEST(LastEventId, NumbersAlone) {
  const auto of = [](const char* value) {
    HttpRequest request;
    request.headers.add("last-event-id", value);
    return last_event_id(request);
  };
  EXPECT_EQ(of("0"), 0u);
  EXPECT_EQ(of("18446744073709551615"), 18446744073709551615u);
  for (const char* value : {"", "-1", "+1", " 1", "1 ", "1x", "0x1", "18446744073709551616"})
    EXPECT_FALSE(of(value)) << value;
  EXPECT_FALSE(last_event_id({}));
}

std::string joined(const std::vector<Bytes>& records) {
  std::string text;
  for (const Bytes& each : records) text += each->substr(4, each->find('\n') - 4) + " ";
  return text;
}

TEST(EventRing, GoesOnAfterAnId) {
  EventRing ring(3);
  EXPECT_EQ(ring.last_id(), 0u);
  ASSERT_TRUE(ring.after(0));
  EXPECT_TRUE(ring.after(0)->empty());
  EXPECT_FALSE(ring.after(1));
  for (int i = 0; i < 3; ++i) ring.add("e", "d");
  EXPECT_EQ(ring.last_id(), 3u);
  EXPECT_EQ(joined(*ring.after(0)), "1 2 3 ");
  ring.add("e", "d");
  EXPECT_FALSE(ring.after(0));  // record 1 is gone
  EXPECT_EQ(joined(*ring.after(1)), "2 3 4 ");
  EXPECT_EQ(joined(*ring.after(3)), "4 ");
  EXPECT_EQ(joined(*ring.after(4)), "");
  EXPECT_FALSE(ring.after(5));
  EXPECT_FALSE(ring.after(~std::uint64_t{0}));
}

TEST(EventRing, IdsOfARestartedServerAreOthers) {
  EventRing ring(64, 1'000'000);
  EXPECT_EQ(ring.last_id(), 999'999u);
  ring.add("e", "d");
  EXPECT_FALSE(ring.after(5));
  EXPECT_EQ(joined(*ring.after(999'999)), "1000000 ");
}

// A stream that keeps what it is given.
class Reader final : public BodyStream {
 public:
  bool write(Bytes bytes) override {
    const std::lock_guard guard(mutex);
    if (!there) return false;
    text += *bytes;
    return true;
  }
  void end() override { ended = true; }
  void abort() override {}
  std::size_t waiting_bytes() const override { return 0; }
  void on_drained(std::function<void()>) override {}

  std::mutex mutex;
  std::string text;
  bool there = true, ended = false;
};

const std::function<std::string()> whole = [] { return "all"; };

TEST(EventChannel, ANewReaderGetsTheStateFirst) {
  EventChannel channel;
  channel.publish("a", "1");
  channel.publish("a", "2");
  const auto reader = std::make_shared<Reader>();
  channel.join(reader, std::nullopt, whole);
  channel.publish("a", "3");
  EXPECT_EQ(reader->text, "id: 2\nevent: state\ndata: all\n\nid: 3\nevent: a\ndata: 3\n\n");
}

TEST(EventChannel, OneWhoComesBackGetsWhatItMissed) {
  EventChannel channel(2);
  for (const char* each : {"1", "2", "3"}) channel.publish("a", each);
  const auto missed_one = std::make_shared<Reader>(), missed_too_many = std::make_shared<Reader>();
  channel.join(missed_one, 2, whole);
  channel.join(missed_too_many, 0, whole);
  EXPECT_EQ(missed_one->text, "id: 3\nevent: a\ndata: 3\n\n");
  EXPECT_EQ(missed_too_many->text, "id: 3\nevent: state\ndata: all\n\n");
}

TEST(EventChannel, ReadersWhoLeaveAreForgotten) {
  EventChannel channel;
  const auto stays = std::make_shared<Reader>(), leaves = std::make_shared<Reader>();
  channel.join(stays, {}, whole);
  channel.join(leaves, {}, whole);
  EXPECT_EQ(channel.readers(), 2u);
  leaves->there = false;
  channel.ping();
  EXPECT_EQ(channel.readers(), 1u);
  EXPECT_TRUE(stays->text.ends_with("\n\n:\n\n"));
  const auto gone = std::make_shared<Reader>();
  gone->there = false;
  channel.join(gone, {}, whole);
  EXPECT_EQ(channel.readers(), 1u);
}

TEST(EventChannel, TheEndIsSeenByAll) {
  EventChannel channel;
  const auto reader = std::make_shared<Reader>(), late = std::make_shared<Reader>();
  channel.join(reader, {}, whole);
  channel.end();
  channel.publish("a", "1");
  EXPECT_TRUE(reader->ended);
  EXPECT_EQ(reader->text, "id: 0\nevent: state\ndata: all\n\n");
  channel.join(late, {}, whole);
  EXPECT_TRUE(late->ended);
  EXPECT_EQ(late->text, "id: 0\nevent: state\ndata: all\n\n");
  EXPECT_EQ(channel.readers(), 0u);
}

TEST(EventChannel, FromManyThreadsEveryReaderSeesOneOrder) {
  EventChannel channel(10'000);
  const auto first = std::make_shared<Reader>(), second = std::make_shared<Reader>();
  channel.join(first, {}, whole);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) channel.publish("a", "1");
    });
  channel.join(second, 0, whole);
  for (std::thread& each : threads) each.join();
  const std::string state = "id: 0\nevent: state\ndata: all\n\n";
  EXPECT_EQ(first->text, state + second->text);
  EXPECT_TRUE(first->text.ends_with("id: 2000\nevent: a\ndata: 1\n\n"));
}

}  // namespace
}  // namespace pom::net
