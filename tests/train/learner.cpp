// Parameters in one piece, draws that no split changes, steps, validation and what is not finite.
#include "pom/train/learner.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include "pom/train/device.h"

namespace pom::train {
namespace {

Recipe tiny(std::vector<std::string> sets = {}) {
  for (const char* set : {"data.size=[8, 8]", "data.validation=20", "network.dim=16", "network.depth=2",
                          "batch.size=8", "optimizer.lr=1e-3"})
    sets.insert(sets.begin(), set);
  Recipe recipe = parse_recipe("", "tiny", sets);
  recipe.network.classes = 10, recipe.network.channels = 3;
  return recipe;
}

data::Split data_of(const Recipe& recipe) {
  return data::open_dataset(recipe.data, 0);
}

data::Batch batch_of(const Recipe& recipe) {
  data::Loader loader(data_of(recipe).training, {.batch = recipe.batch.size});
  return loader.next();
}

TEST(Parameters, AreViewsOfOnePiece) {
  const Recipe recipe = tiny();
  Learner learner(recipe, at::kCPU);
  Parameters& p = learner.parameters();
  const models::Weights before = p.named(p.values());
  EXPECT_EQ(p.slices().size(), before.size());
  p.values().mul_(2);
  for (const auto& [name, weight] : p.named(p.values()))
    EXPECT_TRUE(at::equal(weight, before.at(name) * 2)) << name;
  for (const Slice& slice : p.slices())
    EXPECT_EQ(slice.begin < p.decayed(), decays(slice.name, static_cast<std::int64_t>(slice.shape.size())))
        << slice.name;
  models::Weights zeros = p.named(p.values());
  for (auto& [name, weight] : zeros) weight.zero_();
  p.assign(p.values(), zeros);
  EXPECT_EQ(p.values().abs().max().item<double>(), 0);
}

TEST(Parameters, MatricesBetweenLayersLieByShape) {
  Learner learner(tiny({"network.dim=12"}), at::kCPU);  // whose sizes are no multiples of a cache line
  Parameters& p = learner.parameters();
  p.values().zero_();
  for (const MatrixGroup& each : p.matrices()) each.of(p.values()).fill_(1);
  std::int64_t matrices = 0;
  for (const auto& [name, weight] : p.named(p.values())) {
    const bool between = between_layers(name, weight.dim());
    matrices += between ? 1 : 0;
    EXPECT_EQ(weight.sum().item<double>(), between ? static_cast<double>(weight.numel()) : 0) << name;
  }
  std::int64_t grouped = 0;
  for (const MatrixGroup& each : p.matrices()) grouped += each.count;
  EXPECT_EQ(grouped, matrices);
  EXPECT_LT(std::ssize(p.matrices()), matrices) << "some have a shape in common";
  EXPECT_LE(p.matrices_end(), p.decayed());
  EXPECT_FALSE(between_layers("out_proj.weight", 2));
  EXPECT_FALSE(between_layers("in_conv.weight", 4));
  EXPECT_FALSE(between_layers("classes_emb.weight", 2));
}

TEST(Parameters, WhatDecays) {
  EXPECT_TRUE(decays("layers.0.pom.ho_proj.weight", 2));
  EXPECT_TRUE(decays("in_conv.weight", 4));
  EXPECT_FALSE(decays("layers.0.pom.ho_proj.bias", 1));
  EXPECT_FALSE(decays("classes_emb.weight", 2));
}

TEST(Objective, DrawsDoNotDependOnTheSplit) {
  const Recipe recipe = tiny({"batch.label_drop=0.5"});
  const Objective objective(recipe);
  const at::Tensor x0 = at::zeros({8, 3, 8, 8});
  const DrawKey key{.seed = 7, .draw = 3};
  const Draw whole = objective.draw(key, x0, 0);
  const Draw part = objective.draw(key, x0.narrow(0, 3, 4), 3);
  EXPECT_TRUE(at::equal(part.noise, whole.noise.narrow(0, 3, 4)));
  EXPECT_TRUE(at::equal(part.times, whole.times.narrow(0, 3, 4)));
  const Draw other = objective.draw({.seed = 7, .draw = 4}, x0, 0);
  EXPECT_FALSE(at::equal(other.noise, whole.noise));
  EXPECT_FALSE(at::equal(other.times, whole.times));
}

TEST(ImageModel, SomeLoseTheirClassAndThatDoesNotDependOnTheSplit) {
  const std::unique_ptr<TrainingModel> model =
      make_training_model(tiny({"batch.label_drop=0.5"}), at::kCPU, at::kCPU);
  const at::Tensor labels = at::arange(8, at::kLong);
  const DrawKey key{.seed = 7, .draw = 3};
  const at::Tensor whole = model->tell({labels, {}}, key, 0).at(0);
  const at::Tensor part = model->tell({labels.narrow(0, 3, 4), {}}, key, 3).at(0);
  EXPECT_TRUE(at::equal(part, whole.narrow(0, 3, 4)));
  const at::Tensor dropped = whole == 10;
  EXPECT_TRUE(dropped.any().item<bool>());
  EXPECT_TRUE(((whole == labels) | dropped).all().item<bool>());
  EXPECT_TRUE(at::equal(model->tell_all({labels, {}}).at(0), labels));
}

TEST(Objective, EvenTimesAreAllThere) {
  const Objective objective(tiny());
  const at::Tensor x0 = at::zeros({20, 3, 8, 8});
  const at::Tensor times = std::get<0>(objective.draw_evenly({}, x0, 0, 20).times.sort());
  EXPECT_TRUE(at::allclose(times, (at::arange(20, at::kFloat) + 0.5) / 20));
}

TEST(Learner, PartsOfABatchGiveTheSameStep) {
  std::vector<at::Tensor> weights;
  for (const char* parts : {"batch.accumulate=1", "batch.accumulate=4"}) {
    const Recipe recipe = tiny({parts, "run.precision=fp64"});
    Learner learner(recipe, at::kCPU);
    State state;
    for (int i = 0; i < 3; ++i) learner.step(batch_of(recipe), state);
    weights.push_back(learner.parameters().values().clone());
  }
  EXPECT_TRUE(at::allclose(weights[0], weights[1], 1e-10, 1e-12));
}

TEST(Learner, ASnapshotRestoresEverything) {
  for (const char* kind : {"adamw", "muon"}) {
    const Recipe recipe = tiny({std::string("optimizer.kind=") + kind});
    Learner learner(recipe, at::kCPU), other(recipe, at::kCPU);
    State state;
    for (int i = 0; i < 5; ++i) learner.step(batch_of(recipe), state);
    other.restore(learner.snapshot(state));
    State copied = state;
    const StepResult one = learner.step(batch_of(recipe), state), two = other.step(batch_of(recipe), copied);
    EXPECT_EQ(one.loss, two.loss);
    EXPECT_TRUE(at::equal(learner.parameters().values(), other.parameters().values()));
    EXPECT_TRUE(at::equal(learner.optimizer().ema, other.optimizer().ema));
    EXPECT_EQ(state.step, 6);
  }
}

TEST(Learner, ValidationLeavesTheWeightsAlone) {
  const Recipe recipe = tiny();
  Learner learner(recipe, at::kCPU);
  State state;
  for (int i = 0; i < 3; ++i) learner.step(batch_of(recipe), state);
  const at::Tensor before = learner.parameters().values().clone();
  const data::Split data = data_of(recipe);
  const ValidationResult first = learner.validate(*data.validation, 1),
                         again = learner.validate(*data.validation, 1);
  EXPECT_EQ(first.loss, again.loss);
  EXPECT_EQ(first.by_time.size(), 10u);
  EXPECT_NE(first.loss, learner.validate(*data.validation, 2).loss);
  EXPECT_TRUE(at::equal(learner.parameters().values(), before));
}

TEST(Learner, AStepThatIsNotFiniteChangesNothing) {
  const Recipe recipe = tiny();
  Learner learner(recipe, at::kCPU);
  State state;
  learner.step(batch_of(recipe), state);
  c10::NoGradGuard no_grad;
  for (const Slice& slice : learner.parameters().slices())
    if (slice.name == "layers.1.ffw.0.bias")
      learner.parameters()
          .values()
          .narrow(0, slice.begin, slice.count)
          .fill_(std::numeric_limits<float>::infinity());
  const at::Tensor before = learner.parameters().values().clone();
  c10::AutoGradMode grad(true);
  const StepResult result = learner.step(batch_of(recipe), state);
  EXPECT_FALSE(result.finite);
  EXPECT_EQ(result.culprit, "the output of layers.1");
  EXPECT_EQ(state.skipped, 1);
  EXPECT_EQ(state.bad_in_row, 1);
  EXPECT_EQ(state.step, 2);
  EXPECT_EQ(state.updates, 1);
  EXPECT_TRUE(at::equal(learner.parameters().values(), before));
}

TEST(LossByTime, IsTheMeanOfEachTenth) {
  LossByTime by_time;
  by_time.add({1, 3}, {0.05f, 0.06f});
  by_time.add({5, 7}, {0.95f, 1.0f});
  EXPECT_EQ(by_time.means()[0], 2);
  EXPECT_EQ(by_time.means()[9], 6);
  EXPECT_TRUE(std::isnan(by_time.means()[4]));
}

TEST(Precision, EndsWithItsScope) {
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  {
    const Precision precision(at::kCPU, "bf16");
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
    const Precision inner(at::kCPU, "fp32");
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU)) << "fp32 asks for nothing";
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

}  // namespace
}  // namespace pom::train
