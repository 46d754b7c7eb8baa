// Tests of many clips at a time: each is the very clip that ClipEngine makes of its prompt and seed, however
// many are beside it, block by block or whole.
#include "pom/generate/many_clips.h"

#include <cmath>
#include <filesystem>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/codecs/words.h"
#include "pom/generate/engine.h"
#include "pom/models/weights.h"

namespace pom::generate {
namespace {

namespace fs = std::filesystem;

// A model with random weights in a folder of its own.
class ClipModel {
 public:
  explicit ClipModel(const std::string& mask, std::int64_t window = 0)
      : folder_(fs::temp_directory_path() / detail::concat("pom_many_clips_", mask, "_", window)) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    ModelConfig config;
    models::NetworkConfig& n = config.network;
    n.kind = "vdipom";
    n.dim = 24, n.depth = 2, n.patch = 4, n.patch_time = 2, n.channels = 3, n.text_width = 8,
    n.ffw_expand = 2;
    n.temporal_mask = mask, n.window = window;
    config.text = {.kind = "words", .width = 8, .limit = 12, .layers = 1};
    config.sample.size = {16, 8}, config.sample.sampler = "euler", config.sample.steps = 3;
    config.sample.cfg_scale = 2, config.sample.frames = 6, config.sample.fps = 8;
    write_config(folder_, config);
    at::manual_seed(7);
    models::Weights weights;
    for (const models::TensorSpec& spec : models::expected_tensors(n)) {
      const at::Tensor values = at::randn(spec.shape);
      const bool matrix = spec.shape.size() > 1;
      weights[spec.name] =
          values * (matrix ? 0.6 / std::sqrt(static_cast<double>(values.numel() / values.size(0))) : 0.1);
    }
    models::write_weights(folder_ / weights_file, weights, at::kFloat);
    codecs::Words(config.text, codecs::WordPieces::from_lines("a\nblue\nleft\nstar\n"))
        .save(folder_ / codecs::text_folder);
  }
  ~ClipModel() { fs::remove_all(folder_); }
  const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_;
};

const std::vector<std::string> prompts = {"a star", "a blue star to the left", "", "left", "blue blue blue"};

Request request_of(const ClipEngine& engine) {
  return engine.resolve({.prompt = ""}, {}).request;
}

// (B, 3, T, H, W) of all prompts, so many at a time; clip i has seed 40 + i.
at::Tensor made(ClipEngine& engine, std::int64_t batch, std::int64_t frames,
                std::optional<std::int64_t> window = {}) {
  ManyClips many(engine, request_of(engine), window);
  std::vector<at::Tensor> clips;
  for (std::int64_t begin = 0; begin < std::ssize(prompts); begin += batch) {
    const std::int64_t count = std::min(batch, std::ssize(prompts) - begin);
    std::vector<std::uint64_t> seeds;
    for (std::int64_t i = 0; i < count; ++i) seeds.push_back(static_cast<std::uint64_t>(40 + begin + i));
    std::vector<at::Tensor> blocks;
    std::int64_t next = 0, steps = 0;
    ManyObserver observer;
    observer.on_step = [&](std::int64_t done, std::int64_t total) {
      EXPECT_EQ(done, ++steps);
      EXPECT_EQ(total, many.steps(frames));
    };
    observer.on_frames = [&](std::int64_t first, const at::Tensor& block) {
      EXPECT_EQ(first, next);
      next += block.size(2);
      blocks.push_back(block);
    };
    many.run(std::span(prompts).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)),
             seeds, frames, observer);
    EXPECT_EQ(steps, many.steps(frames));
    clips.push_back(at::cat(blocks, 2));
  }
  return at::cat(clips);
}

// What `pom sample` makes of clip i.
at::Tensor alone(ClipEngine& engine, std::int64_t i, std::int64_t frames) {
  Request request;
  request.seed = 40 + i;
  const ClipJob job = engine.resolve(
      {.prompt = prompts[static_cast<std::size_t>(i)], .frames = std::to_string(frames)}, request);
  std::vector<at::Tensor> shown;
  ClipObserver observer;
  observer.on_frame = [&](io::Image&& image) {
    shown.push_back(at::tensor(at::ArrayRef<std::uint8_t>(image.data)).view({image.height, image.width, 3}));
  };
  engine.run(job, observer);
  return at::stack(shown).permute({3, 0, 1, 2}).contiguous();
}

// Equal but for single levels where rounding met a difference far below one.
void expect_near(const at::Tensor& a, const at::Tensor& b) {
  ASSERT_EQ(a.sizes(), b.sizes());
  const at::Tensor difference = (a.to(at::kInt) - b.to(at::kInt)).abs();
  EXPECT_LE(difference.max().item<int>(), 1);
  EXPECT_LT(difference.gt(0).to(at::kFloat).mean().item<float>(), 1e-3);
}

TEST(ManyClips, EachIsTheClipThatItIsAlone) {
  for (const auto& [mask, window] :
       {std::pair<const char*, std::int64_t>{"block-causal", 0}, {"block-causal", 2}, {"none", 0}}) {
    const ClipModel model(mask, window);
    ClipEngine engine(model.folder());
    const at::Tensor all = made(engine, 5, 6);
    ASSERT_EQ(all.sizes(), at::IntArrayRef({5, 3, 6, 8, 16}));
    for (std::int64_t i = 0; i < 5; ++i) expect_near(all[i], alone(engine, i, 6));
    EXPECT_GT((all[0].to(at::kInt) - all[1].to(at::kInt)).abs().max().item<int>(), 20);
  }
}

TEST(ManyClips, BatchesDoNotMatter) {
  const ClipModel model("block-causal", 2);
  ClipEngine engine(model.folder());
  const at::Tensor all = made(engine, 5, 10);
  expect_near(all, made(engine, 3, 10));
  expect_near(all, made(engine, 1, 10));
}

TEST(ManyClips, AWindowOfItsOwn) {
  const ClipModel wide("block-causal", 0), narrow("block-causal", 2);
  ClipEngine without(wide.folder()), with(narrow.folder());
  const at::Tensor all = made(without, 5, 10);
  EXPECT_TRUE(at::equal(made(without, 5, 10, 2), made(with, 5, 10)));
  EXPECT_TRUE(at::equal(made(with, 5, 10, 0), all));
  expect_near(made(with, 5, 10, 5), all);  // five blocks are all there are
  EXPECT_FALSE(at::equal(made(with, 5, 10), all));
}

TEST(ManyClips, WholeBlocksAndMistakes) {
  const ClipModel causal("block-causal"), whole("none");
  ClipEngine engine(causal.folder()), other(whole.folder());
  EXPECT_EQ(made(engine, 5, 3).size(2), 4);
  EXPECT_THROW(ManyClips(other, request_of(other), 2), Error);
  ManyClips many(engine, request_of(engine));
  EXPECT_THROW(many.run(prompts, {1, 2}, 4, {}), Error);
  EXPECT_THROW(many.run({}, {}, 4, {}), Error);
  EXPECT_THROW(many.run(prompts, {1, 2, 3, 4, 5}, 0, {}), Error);
  try {  // of all blocks at once
    ManyClips(other, request_of(other)).run(prompts, {1, 2, 3, 4, 5}, 1'000'000'000, {});
    ADD_FAILURE() << "more than memory holds was not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("memory: clips, 5 at a time, take about"), std::string::npos)
        << error.what();
  }
  std::atomic<bool> stop = true;
  ManyObserver observer;
  observer.stop = &stop;
  EXPECT_THROW(many.run(prompts, {1, 2, 3, 4, 5}, 4, observer), Stopped);
}

}  // namespace
}  // namespace pom::generate
