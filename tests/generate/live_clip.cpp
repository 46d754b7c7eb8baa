// Tests of clips that are made on demand: their frames are those of the same clip made by a run, whatever
// else the engine does between two blocks.
#include "pom/generate/live_clip.h"

#include "tests/generate/clip_model.h"
#include <gtest/gtest.h>

namespace pom::generate {
namespace {

Request request_of(const std::string& frames, std::int64_t seed = 40) {
  Request request;
  request.prompt = {"a star"};
  request.seed = {seed};
  request.frames = frames;
  request.stream = true;
  return request;
}

std::vector<io::Image> frames_of(Engine& engine, const Request& request) {
  std::vector<io::Image> all;
  Observer observer;
  observer.on_frames = [&](Frames&& frames) {
    for (io::Image& image : frames.images) all.push_back(std::move(image));
  };
  engine.run(engine.resolve(request), {}, observer);
  return all;
}

void add(std::vector<io::Image>& all, Frames frames) {
  EXPECT_EQ(frames.first, std::ssize(all));
  for (io::Image& image : frames.images) all.push_back(std::move(image));
}

TEST(LiveClip, ShowsWhatARunShows) {
  for (const std::int64_t window : {0, 2}) {
    const ClipModel model("block-causal", window);
    Engine engine(model.folder());
    Request whole = request_of("10");
    whole.prompt_at = {"4:a blue star to the left", "8:left"};
    const std::vector<io::Image> expected = frames_of(engine, whole);
    LiveClip clip(engine, engine.resolve(request_of("inf")));
    std::vector<io::Image> live;
    for (std::int64_t block = 0; block < 5; ++block) {
      if (block == 2) clip.tell("a blue star to the left");
      if (block == 4) clip.tell("left");
      EXPECT_EQ(clip.block(), block);
      add(live, clip.next());
    }
    EXPECT_EQ(live, expected) << window;
    EXPECT_EQ(clip.prompt(), "left");
    EXPECT_EQ(clip.fps(), 8);
  }
}

TEST(LiveClip, IsAloneWithItsNetwork) {
  const ClipModel model("block-causal");
  Engine engine(model.folder());
  const std::vector<io::Image> expected = frames_of(engine, request_of("6")),
                               others = frames_of(engine, request_of("6", 41));
  LiveClip one(engine, engine.resolve(request_of("inf"))), two(engine, engine.resolve(request_of("inf", 41)));
  std::vector<io::Image> first, second;
  for (int block = 0; block < 3; ++block) {
    add(first, one.next());
    EXPECT_EQ(frames_of(engine, request_of("6")), expected);
    add(second, two.next());
  }
  EXPECT_EQ(first, expected);
  EXPECT_EQ(second, others);
}

TEST(LiveClip, StoppedInABlockItIsWhereItWas) {
  const ClipModel model("block-causal");
  Engine engine(model.folder());
  const std::vector<io::Image> expected = frames_of(engine, request_of("6"));
  LiveClip clip(engine, engine.resolve(request_of("inf")));
  std::vector<io::Image> live;
  add(live, clip.next());
  std::atomic<bool> stop = false;
  int evaluations = 0;
  EXPECT_THROW(clip.next(&stop, [&] { stop = ++evaluations == 2; }), Stopped);
  EXPECT_EQ(evaluations, 2);
  EXPECT_EQ(clip.block(), 1);
  add(live, clip.next());
  add(live, clip.next());
  EXPECT_EQ(live, expected);
}

TEST(LiveClip, GoesOnFromItsState) {
  const ClipModel model("block-causal");
  Engine engine(model.folder());
  LiveClip clip(engine, engine.resolve(request_of("inf")));
  const fs::path state = model.folder() / "state.safetensors";
  EXPECT_FALSE(clip.save(state));
  clip.next();
  clip.tell("blue blue blue");
  clip.next();
  ASSERT_TRUE(clip.save(state));
  Request request;
  request.prompt = {};
  request.frames = "inf";
  request.continue_from = state.string();
  LiveClip fork(engine, engine.resolve(request));
  for (int block = 0; block < 3; ++block) EXPECT_EQ(fork.next().images, clip.next().images);
}

TEST(LiveClip, RefusesWhatDoesNotStream) {
  const ClipModel model("block-causal");
  Engine engine(model.folder());
  Request request = request_of("6");
  request.stream = false;
  EXPECT_THROW(LiveClip(engine, engine.resolve(request)), Error);
  request.stream = true, request.prompt = {"a", "b"};
  EXPECT_THROW(LiveClip(engine, engine.resolve(request)), Error);
  LiveClip clip(engine, engine.resolve(request_of("2")));
  clip.next();
  EXPECT_THROW(clip.next(), Error);
}

}  // namespace
}  // namespace pom::generate
