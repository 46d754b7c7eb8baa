// Tests of the engine with a model for clips: each is its own, however many are beside it, block by block or
// whole; images from text; states, prompts that change, and what is refused.
#include "tests/generate/clip_model.h"
#include <cmath>
#include <filesystem>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/generate/engine.h"

namespace pom::generate {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> prompts = {"a star", "a blue star to the left", "", "left", "blue blue blue"};

Request request_of(std::int64_t frames, bool stream = false) {
  Request request;
  request.prompt = prompts;
  request.seed = {40};
  request.frames = std::to_string(frames);
  request.stream = stream;
  return request;
}

// (B, T, H, W, 3) of all items.
at::Tensor made(Engine& engine, const Job& job, const Limits& limits = {}, const Inputs& inputs = {}) {
  std::vector<std::vector<at::Tensor>> clips(job.items.size());
  std::int64_t evaluations = 0;
  Observer observer;
  observer.on_evaluation = [&](std::int64_t done, std::int64_t) { EXPECT_EQ(done, ++evaluations); };
  observer.on_frames = [&](Frames&& frames) {
    std::vector<at::Tensor>& clip = clips.at(static_cast<std::size_t>(frames.item));
    EXPECT_EQ(frames.first, std::ssize(clip));
    for (const io::Image& image : frames.images)
      clip.push_back(
          at::tensor(at::ArrayRef<std::uint8_t>(image.data)).view({image.height, image.width, -1}));
    EXPECT_EQ(frames.last, job.frames == std::ssize(clip));
  };
  engine.run(job, limits, observer, inputs);
  std::vector<at::Tensor> all;
  for (const std::vector<at::Tensor>& clip : clips) all.push_back(at::stack(clip));
  return at::stack(all);
}
at::Tensor made(Engine& engine, const Request& request, const Limits& limits = {}) {
  return made(engine, engine.resolve(request), limits);
}

// Equal but for single levels where rounding met a difference far below one.
void expect_near(const at::Tensor& a, const at::Tensor& b) {
  ASSERT_EQ(a.sizes(), b.sizes());
  const at::Tensor difference = (a.to(at::kInt) - b.to(at::kInt)).abs();
  EXPECT_LE(difference.max().item<int>(), 1);
  EXPECT_LT(difference.gt(0).to(at::kFloat).mean().item<float>(), 1e-3);
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Clips, EachIsTheClipThatItIsAlone) {
  for (const auto& [mask, window] :
       {std::pair<const char*, std::int64_t>{"block-causal", 0}, {"block-causal", 2}, {"none", 0}}) {
    const ClipModel model(mask, window);
    Engine engine(model.folder());
    const at::Tensor all = made(engine, request_of(6), {.batch = 5});
    ASSERT_EQ(all.sizes(), at::IntArrayRef({5, 6, 8, 16, 3}));
    for (std::int64_t i = 0; i < 5; ++i) {
      Request alone = request_of(6);
      alone.prompt = {prompts[static_cast<std::size_t>(i)]};
      alone.seed = {40 + i};
      EXPECT_TRUE(at::equal(all[i], made(engine, alone)[0])) << mask << " " << i;
    }
    EXPECT_GT((all[0].to(at::kInt) - all[1].to(at::kInt)).abs().max().item<int>(), 20);
  }
}

TEST(Clips, StreamsAndBatchesDoNotMatter) {
  const ClipModel model("block-causal", 2);
  Engine engine(model.folder());
  const at::Tensor all = made(engine, request_of(10), {.batch = 5});
  for (const std::int64_t batch : {0, 1, 3})
    EXPECT_TRUE(at::equal(made(engine, request_of(10), {.batch = batch}), all)) << batch;
  const at::Tensor streamed = made(engine, request_of(10, true), {.batch = 5});
  expect_near(streamed, all);
  EXPECT_TRUE(at::equal(made(engine, request_of(10, true), {.batch = 2}), streamed));
}

TEST(Clips, AWindowOfItsOwn) {
  const ClipModel wide("block-causal", 0), narrow("block-causal", 2), whole("none");
  Engine without(wide.folder()), with(narrow.folder()), other(whole.folder());
  const auto seen = [](std::int64_t window) {
    Request request = request_of(10, true);
    request.window = window;
    return request;
  };
  const at::Tensor all = made(without, request_of(10, true));
  EXPECT_TRUE(at::equal(made(without, seen(2)), made(with, request_of(10, true))));
  EXPECT_TRUE(at::equal(made(with, seen(0)), all));
  expect_near(made(with, seen(5)), all);  // five blocks are all there are
  EXPECT_FALSE(at::equal(made(with, request_of(10, true)), all));
  Request refused = request_of(10);
  refused.window = 2;
  EXPECT_NE(error_of([&] { other.resolve(refused); }).find("window: expected a block-causal"),
            std::string::npos);
}

TEST(Clips, PromptsThatChangeWholeAndStreamed) {
  const ClipModel model("block-causal", 2);
  Engine engine(model.folder());
  Request request = request_of(8);
  request.prompt = {"a star", "left"};
  request.prompt_at = {"4:blue blue", "6:a"};
  const at::Tensor whole = made(engine, request);
  request.stream = true;
  expect_near(made(engine, request), whole);
  Request plain = request_of(8);
  plain.prompt = {"a star", "left"};
  const at::Tensor same = made(engine, plain);
  EXPECT_TRUE(at::equal(same.slice(1, 0, 4), whole.slice(1, 0, 4)));
  EXPECT_FALSE(at::equal(same.slice(1, 4), whole.slice(1, 4)));
}

// Position codes, times and "no text" as the authors' networks for clips have them.
TEST(Clips, TheAuthorsChoices) {
  const ClipModel model("authors");
  Engine engine(model.folder());
  const at::Tensor whole = made(engine, request_of(6));
  expect_near(made(engine, request_of(6, true)), whole);
  EXPECT_FALSE(
      at::equal(made(engine, request_of(8)).slice(1, 0, 6), whole));  // times are relative to the end
  EXPECT_GT(engine.forecast(engine.resolve(request_of(6))).seconds, 0);
  Request endless = request_of(6);
  endless.prompt = {"a"}, endless.frames = "inf";
  EXPECT_NE(error_of([&] { engine.resolve(endless); }).find("length is known"), std::string::npos);
}

TEST(Clips, ImagesFromText) {
  const ClipModel model("block-causal");
  Engine engine(model.folder());
  const at::Tensor clips = made(engine, request_of(2)), images = made(engine, request_of(1));
  EXPECT_FALSE(engine.resolve(request_of(1)).clip);
  EXPECT_TRUE(at::equal(images, clips.slice(1, 0, 1)));  // the first frame of one block
}

TEST(Clips, AwayFromAPrompt) {
  const ClipModel model("block-causal", 2);
  Engine engine(model.folder());
  const auto away = [&](std::optional<std::string> prompt, bool stream) {
    Request request = request_of(4, stream);
    request.negative_prompt = std::move(prompt);
    return made(engine, request);
  };
  for (const bool stream : {false, true}) {
    EXPECT_TRUE(at::equal(away("", stream), away({}, stream)));  // no prompt is no text
    EXPECT_FALSE(at::equal(away("blue", stream), away({}, stream)));
    expect_near(away("blue", stream), away("blue", !stream));
  }
}

TEST(Clips, StatesKeepWhatTheyWereMadeWith) {
  const ClipModel model("block-causal", 2);
  Engine engine(model.folder());
  const fs::path state = model.folder() / "state";
  Request request = request_of(8, true);
  request.prompt = {"a star"}, request.negative_prompt = "blue", request.window = 3;
  const at::Tensor whole = made(engine, request);
  request.frames = "4", request.save_state = state.string();
  made(engine, request);
  Request more;
  more.continue_from = state.string(), more.frames = "4";
  EXPECT_TRUE(at::equal(made(engine, more), whole.slice(1, 4)));
  more.prompt = {"left"};
  EXPECT_FALSE(at::equal(made(engine, more), whole.slice(1, 4)));
  more.prompt.clear(), more.window = 2;
  EXPECT_NE(error_of([&] { made(engine, more); }).find("window: the state was made with \"3\""),
            std::string::npos);
}

TEST(Clips, BeginWithAClip) {
  const ClipModel model("block-causal");
  Engine engine(model.folder());
  Request request = request_of(5);
  request.prompt = {"a star"};
  at::manual_seed(3);
  const at::Tensor levels = at::randint(0, 256, {1, 5, 8, 16, 3}, at::kByte);
  const Inputs inputs{.init = ((levels.to(at::kFloat) - 127.5) / 127.5).permute({0, 4, 1, 2, 3})};
  const auto with = [&](double strength, bool stream) {
    Request r = request;
    r.strength = strength, r.stream = stream;
    return made(engine, engine.resolve(r, inputs), {}, inputs);
  };
  for (const bool stream : {false, true}) {
    EXPECT_TRUE(at::equal(with(0, stream), levels));
    Request none = request;
    none.stream = stream;
    EXPECT_TRUE(at::equal(with(1, stream), made(engine, none)));
  }
  expect_near(with(0.5, true), with(0.5, false));
  EXPECT_FALSE(at::equal(with(0.5, true), levels));
}

TEST(Clips, Mistakes) {
  const ClipModel causal("block-causal"), whole("none");
  Engine engine(causal.folder()), other(whole.folder());
  Request request = request_of(4);
  request.class_name = "star";
  EXPECT_NE(error_of([&] { engine.resolve(request); }).find("class: expected a model with classes"),
            std::string::npos);
  request = request_of(4);
  request.dtype = "fp8";
  EXPECT_NE(error_of([&] { engine.resolve(request); }).find("dtype: fp8 needs a GPU"), std::string::npos);
  // All blocks at once.
  EXPECT_NE(
      error_of([&] { made(other, request_of(1'000'000'000)); }).find("memory: one clip at a time takes"),
      std::string::npos);
  std::atomic<bool> stop = true;
  Observer observer;
  observer.stop = &stop;
  EXPECT_THROW(engine.run(engine.resolve(request_of(4)), {}, observer), Stopped);
}

}  // namespace
}  // namespace pom::generate
