// Learning clips: captions told and dropped, times that begin anywhere, words that are trained, averaged and
// kept with the network, and recipes that do not fit.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/train/learner.h"
#include "pom/train/training_model.h"

namespace pom::train {
namespace {

Recipe tiny(const std::vector<std::string>& more = {}) {
  std::vector<std::string> sets = {
      "data.kind=sprites", "data.size=[8, 8]",      "data.frames=8",     "data.validation=10",
      "data.two=0",        "network.kind=vdipom",   "network.dim=16",    "network.depth=2",
      "network.patch=4",   "network.patch_time=2",  "text.width=8",      "text.limit=24",
      "text.layers=1",     "batch.size=8",          "optimizer.lr=3e-3", "optimizer.warmup=3",
      "network.window=2",  "batch.latest_block=31", "ema.decay=0.9"};
  sets.insert(sets.end(), more.begin(), more.end());
  Recipe recipe = parse_recipe("", "tiny", sets);
  check_recipe(recipe, "tiny");
  complete_recipe(recipe, *data::open_dataset(recipe.data, 0).training);
  return recipe;
}

std::string refused(const std::string& set) {
  try {
    tiny({set});
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

class Lessons {
 public:
  explicit Lessons(const Recipe& recipe)
      : data_(data::open_dataset(recipe.data, 0)), loader_(data_.training, {.batch = recipe.batch.size}) {}
  data::Batch next() { return loader_.next(); }
  const data::Dataset& validation() const { return *data_.validation; }

 private:
  data::Split data_;
  data::Loader loader_;
};

const std::vector<std::string> captions = {
    "a red star drifts to the left over blue", "", "a blue disc", "a green zyx", "a red star", "a star"};

TEST(ClipModel, WhatIsToldDoesNotDependOnTheSplit) {
  const std::unique_ptr<TrainingModel> model =
      make_training_model(tiny({"batch.label_drop=0.5"}), at::kCPU, at::kCPU);
  const DrawKey key{.seed = 3, .draw = 5};
  const at::Tensor labels = at::zeros({6}, at::kLong);
  const Condition whole = model->tell({labels, captions}, key, 0), all = model->tell_all({labels, captions});
  const Condition part = model->tell({labels.narrow(0, 2, 3), std::span(captions).subspan(2, 3)}, key, 2);
  for (std::size_t i = 0; i < whole.size(); ++i)
    EXPECT_TRUE(at::equal(part[i], whole[i].narrow(0, 2, 3))) << i;
  const at::Tensor heard = whole[1].any(1), said = all[1].any(1);
  EXPECT_FALSE(said[1].item<bool>()) << "an empty caption";
  EXPECT_EQ(said.sum().item<std::int64_t>(), 5);
  EXPECT_LT(heard.sum().item<std::int64_t>(), 5) << "some are dropped";
  EXPECT_GT(heard.sum().item<std::int64_t>(), 0) << "and some are not";
  EXPECT_TRUE(at::equal(whole[0], all[0]));
}

TEST(ClipModel, ClipsBeginAnywhereUpToTheLatestBlock) {
  const std::unique_ptr<TrainingModel> model =
      make_training_model(tiny({"batch.latest_block=3"}), at::kCPU, at::kCPU);
  const std::vector<std::string> many(200, "a star");
  const Annotations annotations{at::zeros({200}, at::kLong), many};
  const at::Tensor begin = model->tell(annotations, {.seed = 1, .draw = 0}, 0).at(2);
  EXPECT_TRUE(at::equal(std::get<0>(at::_unique2(begin)), at::arange(4, at::kLong)));
  EXPECT_FALSE(at::equal(begin, model->tell(annotations, {.seed = 1, .draw = 1}, 0).at(2)));
  EXPECT_TRUE(at::equal(model->tell_all(annotations).at(2), at::zeros({200}, at::kLong)));
}

TEST(ClipModel, WordsAreParametersLikeAllOthers) {
  const Recipe recipe = tiny();
  Learner learner(recipe, at::kCPU);
  Lessons lessons(recipe);
  const models::Weights before = learner.parameters().named(learner.parameters().values());
  State state;
  for (int i = 0; i < 6; ++i) learner.step(lessons.next(), state);  // gates are shut at first
  const Checkpoint after = learner.snapshot(state);
  for (const char* name : {"text_encoder.pieces.weight", "text_encoder.near.0.weight", "text_proj.weight"}) {
    EXPECT_FALSE(at::equal(after.weights.at(name), before.at(name))) << name;
    EXPECT_FALSE(at::equal(after.ema.at(name), before.at(name))) << name;
    EXPECT_GT(after.moment2.at(name).abs().max().item<double>(), 0) << name;
  }
  EXPECT_NE(after.state.words.find("star\n"), std::string::npos);
  EXPECT_EQ(text_part(after.weights).count("pieces.weight"), 1u);
  EXPECT_EQ(network_part(after.weights).size() + text_part(after.weights).size(), after.weights.size());
  EXPECT_FALSE(decays("text_encoder.pieces.weight", 2));
  EXPECT_TRUE(decays("text_encoder.near.0.weight", 2));
}

TEST(ClipModel, ItLearns) {
  for (const char* mask : {"network.window=2", "network.window=0"}) {
    const Recipe recipe = tiny({mask});
    Learner learner(recipe, at::kCPU);
    Lessons lessons(recipe);
    State state;
    const double before = learner.validate(lessons.validation(), 0).loss;
    for (int i = 0; i < 60; ++i) ASSERT_TRUE(learner.step(lessons.next(), state).finite);
    EXPECT_LT(learner.validate(lessons.validation(), 0).loss, 0.85 * before) << mask;
  }
}

TEST(ClipModel, AMaskOfNoneLearnsToo) {
  const Recipe recipe = tiny({"network.temporal_mask=none", "network.window=0"});
  Learner learner(recipe, at::kCPU);
  Lessons lessons(recipe);
  State state;
  const double before = learner.validate(lessons.validation(), 0).loss;
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(learner.step(lessons.next(), state).finite);
  EXPECT_LT(learner.validate(lessons.validation(), 0).loss, 0.85 * before);
}

TEST(ClipModel, ASnapshotRestoresEverything) {
  const Recipe recipe = tiny();
  Learner learner(recipe, at::kCPU);
  Lessons lessons(recipe);
  State state;
  for (int i = 0; i < 4; ++i) learner.step(lessons.next(), state);
  const Checkpoint saved = learner.snapshot(state);
  Learner other(recipe, at::kCPU, saved.state.words);
  other.restore(saved);
  State copied = saved.state;
  for (int i = 0; i < 3; ++i) {
    const data::Batch batch = lessons.next();
    EXPECT_EQ(learner.step(batch, state).loss, other.step(batch, copied).loss);
  }
  EXPECT_TRUE(at::equal(learner.parameters().values(), other.parameters().values()));
  EXPECT_TRUE(at::equal(learner.optimizer().ema, other.optimizer().ema));
}

TEST(ClipModel, PartsOfABatchGiveTheSameStep) {
  std::vector<at::Tensor> weights;
  for (const char* parts : {"batch.accumulate=1", "batch.accumulate=4"}) {
    const Recipe recipe = tiny({parts, "run.precision=fp64"});
    Learner learner(recipe, at::kCPU);
    Lessons lessons(recipe);
    State state;
    for (int i = 0; i < 3; ++i) learner.step(lessons.next(), state);
    weights.push_back(learner.parameters().values().clone());
  }
  EXPECT_TRUE(at::allclose(weights[0], weights[1], 1e-9, 1e-11));
}

at::Tensor words_of(const Prepared& prepared) {
  std::vector<at::Tensor> pieces;
  for (const Condition& told : prepared.told) pieces.push_back(told.at(0));
  return at::cat(pieces);
}

// With two in four frames each: clip i becomes clips 2 i and 2 i + 1, both told its caption.
TEST(ClipLearner, CutsClipsIntoOnesThatFollowEachOther) {
  const Recipe recipe = tiny();
  Lessons lessons(recipe);
  const data::Batch batch = lessons.next();
  const Prepared whole = Learner(recipe, at::kCPU).prepare(batch, 1, 0);
  for (const char* parts : {"batch.accumulate=1", "batch.accumulate=4"}) {
    const Learner cutting(tiny({"batch.cut=1", "batch.cut_frames=4", "batch.label_drop=0", parts}), at::kCPU);
    const Prepared cut = cutting.prepare(batch, 1, 0);
    const at::Tensor clips = at::cat(cut.x0), whole_clips = at::cat(whole.x0);
    ASSERT_EQ(clips.sizes(), at::IntArrayRef({16, 3, 4, 8, 8}));
    const at::Tensor words = words_of(cut), whole_words = words_of(whole);
    for (std::int64_t i = 0; i < 16; ++i) {
      EXPECT_TRUE(at::equal(clips[i], whole_clips[i / 2].narrow(1, i % 2 * 4, 4))) << parts << " " << i;
      EXPECT_TRUE(at::equal(words[i], whole_words[i / 2])) << parts << " " << i;
    }
  }
}

TEST(ClipLearner, CutsInAShareOfTheStepsWhichTheSeedDecides) {
  const Recipe recipe = tiny({"batch.cut=0.5", "batch.cut_frames=4"});
  const Learner learner(recipe, at::kCPU);
  Lessons lessons(recipe);
  const data::Batch batch = lessons.next();
  std::int64_t cut = 0;
  for (std::int64_t draw = 0; draw < 40; ++draw) {
    const std::int64_t clips = at::cat(learner.prepare(batch, 1, draw).x0).size(0);
    EXPECT_EQ(clips, at::cat(learner.prepare(batch, 1, draw).x0).size(0)) << draw;
    cut += clips == 16;
  }
  EXPECT_GT(cut, 8);
  EXPECT_LT(cut, 32);
}

// Each part of a clip is told its own caption, also in the pieces that a clip is cut into; what is drawn for
// a clip does not depend on the split of the batch, and nothing that is dropped is told to any part.
TEST(ClipLearner, PartsOfAClipHaveCaptions) {
  const std::vector<std::string> changes = {"data.changes=1", "data.change_every=2", "batch.label_drop=0.4"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), changes.begin(), changes.end());
    return tiny(more);
  };
  Lessons lessons(with({}));
  const data::Batch batch = lessons.next();
  ASSERT_EQ(batch.captions.size(), 32u);
  const Prepared whole = Learner(with({"batch.accumulate=1"}), at::kCPU).prepare(batch, 1, 0);
  const at::Tensor words = words_of(whole);
  ASSERT_EQ(words.sizes(), at::IntArrayRef({8, 4, 24}));
  for (std::int64_t i = 0; i < 32; ++i)
    for (std::int64_t j = i / 4 * 4; j < i; ++j)
      EXPECT_EQ(batch.captions[static_cast<std::size_t>(i)] == batch.captions[static_cast<std::size_t>(j)],
                at::equal(words.flatten(0, 1)[i], words.flatten(0, 1)[j]));
  std::vector<at::Tensor> masks;
  for (const Condition& told : whole.told) masks.push_back(told.at(1));
  const at::Tensor heard = at::cat(masks).any(2);
  EXPECT_TRUE(at::equal(heard.any(1), heard.all(1)));
  EXPECT_TRUE(heard.any().item<bool>());
  EXPECT_FALSE(heard.all().item<bool>());
  const Prepared cut = Learner(with({"batch.cut=1", "batch.cut_frames=4", "batch.accumulate=4"}), at::kCPU)
                           .prepare(batch, 1, 0);
  EXPECT_TRUE(at::equal(words_of(cut), words.reshape({16, 2, 24})));
}

TEST(ClipLearner, LearnsChangesInPartsOfABatch) {
  std::vector<at::Tensor> weights;
  for (const char* parts : {"batch.accumulate=1", "batch.accumulate=4"}) {
    const Recipe recipe = tiny({parts, "run.precision=fp64", "data.changes=0.5", "data.change_every=4",
                                "batch.cut=0.5", "batch.cut_frames=4"});
    Learner learner(recipe, at::kCPU);
    Lessons lessons(recipe);
    State state;
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(learner.step(lessons.next(), state).finite);
    weights.push_back(learner.parameters().values().clone());
    EXPECT_GT(learner.validate(lessons.validation(), 0).loss, 0);
  }
  EXPECT_TRUE(at::allclose(weights[0], weights[1], 1e-9, 1e-11));
}

TEST(ClipRecipe, PromptsChangeBetweenBlocksAndCuts) {
  const auto refused_of = [](const std::vector<std::string>& sets) -> std::string {
    try {
      tiny(sets);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_EQ(refused_of({"data.changes=0.5", "data.change_every=1"}),
            "tiny: data.change_every: expected whole blocks of network.patch_time (2) frames, got 1");
  EXPECT_EQ(refused_of({"data.changes=0.5", "data.frames=24", "data.change_every=12", "batch.cut=0.5",
                        "batch.cut_frames=8"}),
            "tiny: data.change_every: expected whole blocks of network.patch_time (2) frames that divide "
            "batch.cut_frames (8), got 12");
  EXPECT_EQ(refused_of({"data.changes=0.5", "data.change_every=8"}),
            "tiny: data: change_every: expected a divisor of data.frames (8) below it, got 8");
}

TEST(ClipRecipe, WhatDoesNotFitIsRefused) {
  EXPECT_EQ(refused("batch.cut=0.5"),
            "tiny: batch.cut_frames: expected whole blocks of network.patch_time (2) frames that divide "
            "data.frames (8), got 0");
  EXPECT_EQ(refused("data.frames=7"),
            "tiny: data.frames: expected whole blocks of network.patch_time (2) frames, got 7");
  EXPECT_EQ(refused("network.text_width=9"), "tiny: network.text_width: expected text.width (8), got 9");
  EXPECT_EQ(refused("data.kind=shapes"),
            "tiny: network.kind: expected dipom with data.kind shapes, got vdipom");
  EXPECT_NE(refused("network.kind=dipom").find("network.kind: expected vdipom"), std::string::npos);
  EXPECT_NE(refused("batch.checkpointing=true").find("batch.accumulate saves memory too"), std::string::npos);
  EXPECT_NE(refused("data.path=there").find("expected nothing with data.kind sprites"), std::string::npos);
  EXPECT_NE(refused("data.kind=clips").find("data.path: expected the folder of the clips"),
            std::string::npos);
  EXPECT_NE(refused("network.temporal_mask=none").find("window: expected 0 without a block-causal mask"),
            std::string::npos);
}

TEST(ClipRecipe, TheDataTellsTheRest) {
  const Recipe recipe = tiny();
  EXPECT_EQ(recipe.network.channels, 3);
  EXPECT_EQ(recipe.network.text_width, 8);
  EXPECT_EQ(recipe.sample.frames, 8);
  EXPECT_EQ(recipe.sample.fps, 8);
  const Recipe again = parse_recipe(recipe_text(recipe), "again");
  EXPECT_TRUE(changes(recipe, again).empty());
}

TEST(ClipRecipe, ChangesBetweenPicturesAndClipsAreNamed) {
  bool kind = false, text = false;
  for (const Change& change : changes(parse_recipe("", "pictures"), tiny())) {
    kind |= change.field == "network.kind" && !change.allowed;
    text |= change.field == "text.width" && change.before == "nothing" && !change.allowed;
  }
  EXPECT_TRUE(kind);
  EXPECT_TRUE(text);
}

}  // namespace
}  // namespace pom::train
