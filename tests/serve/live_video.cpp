// Tests of the .mp4 of a live stream: who comes late begins at a key frame and at 0, who is slow is let go.
#include "pom/serve/live_video.h"

#include <gtest/gtest.h>

#include "pom/io/mp4_fragment.h"

namespace pom::serve {
namespace {

class Body : public net::BodyStream {
 public:
  bool write(net::Bytes bytes) override {
    pieces.push_back(*bytes);
    return true;
  }
  void end() override {}
  void abort() override { aborted = true; }
  std::size_t waiting_bytes() const override { return waiting; }
  void on_drained(std::function<void()>) override {}

  std::vector<std::string> pieces;
  std::size_t waiting = 0;
  bool aborted = false;
};

class LiveVideoTest : public testing::Test {
 protected:
  void SetUp() override {
    if (io::clip_libraries().empty()) GTEST_SKIP() << "this build has no FFmpeg";
  }
  void block(double now = 0) {
    const std::vector<io::Image> frames(2, io::make_image("test", 8, 8, 3));
    video_.give(video_.encode(frames), now);
  }
  LiveVideo video_{2, 8};
};

TEST_F(LiveVideoTest, WhoComesLateBeginsAtZero) {
  const auto first = std::make_shared<Body>(), late = std::make_shared<Body>();
  video_.join(first);
  EXPECT_TRUE(first->pieces.empty());
  for (int i = 0; i < 5; ++i) block();  // a key frame in the first and the fifth
  ASSERT_EQ(first->pieces.size(), 6u);
  EXPECT_EQ(first->pieces[0].substr(4, 4), "ftyp");
  video_.join(late);
  ASSERT_EQ(late->pieces.size(), 2u);  // at once, with what is held since the key frame
  EXPECT_EQ(late->pieces[0], first->pieces[0]);
  EXPECT_EQ(io::fragment_time(late->pieces[1]), 0u);
  EXPECT_GT(io::fragment_time(first->pieces[5]), 0u);
  block();
  ASSERT_EQ(late->pieces.size(), 3u);
  const auto step = io::fragment_time(first->pieces[6]).value() - io::fragment_time(first->pieces[5]).value();
  EXPECT_EQ(io::fragment_time(late->pieces[2]), step);
  video_.leave(first), video_.leave(late);
  EXPECT_EQ(video_.viewers(), 0u);
}

TEST_F(LiveVideoTest, WhoIsSlowIsLetGo) {
  const auto slow = std::make_shared<Body>(), full = std::make_shared<Body>(),
             good = std::make_shared<Body>();
  for (const auto& body : {slow, full, good}) video_.join(body);
  block(0);
  slow->waiting = 1;
  block(1);
  block(4.9);
  EXPECT_FALSE(slow->aborted);
  block(5.1);
  EXPECT_TRUE(slow->aborted && !full->aborted);
  full->waiting = LiveVideo::most_behind_bytes + 1;
  block(5.2);
  EXPECT_TRUE(full->aborted && !good->aborted);
  EXPECT_EQ(video_.viewers(), 1u);
  const std::size_t before = slow->pieces.size();
  block(6);
  EXPECT_EQ(slow->pieces.size(), before);
  EXPECT_EQ(good->pieces.size(), 7u);
}

}  // namespace
}  // namespace pom::serve
