// Tests of the judge: it learns, the same way each time, from drawings that nobody else sees; its files.
#include "pom/eval/judge.h"

#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <set>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/data/shapes.h"

namespace pom::eval {
namespace {

namespace fs = std::filesystem;

constexpr Canvas small{16, 16};

struct Folder {
  Folder() {
    std::string name = (fs::temp_directory_path() / "pom-judge-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
  fs::path path;
};

template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no pom::Error was thrown";
  return "";
}

JudgeConfig brief(std::int64_t steps) {
  return {.canvas = small, .steps = steps, .batch = 64};
}

// Trained once for all tests that only look.
const Judge& judge() {
  static const Judge trained = Judge::train(brief(250));
  return trained;
}

bool equal(const Verdicts& a, const Verdicts& b) {
  return at::equal(a.kinds, b.kinds) && at::equal(a.hues, b.hues) && at::equal(a.poses, b.poses) &&
         at::equal(a.features, b.features);
}

TEST(Judge, LearnsWhatDrawingsShow) {
  EXPECT_GT(held_out_rate(judge(), 500), 0.6);  // one in ten by chance; 0.7 after seconds, of 16 pixels
  const Drawings drawings = draw(DrawnFor::reference, 0, 0, 500, small);
  const Verdicts verdicts = judge().look(drawings.pictures);
  EXPECT_GT(verdicts.hues.eq(drawings.hues).to(at::kDouble).mean().item<double>(), 0.95);
  const at::Tensor errors = (verdicts.poses - drawings.poses).square().mean(0),
                   spreads = (drawings.poses - drawings.poses.mean(0)).square().mean(0);
  for (int i = 0; i < 3; ++i)
    EXPECT_LT(errors[i].item<double>(), 0.25 * spreads[i].item<double>()) << "pose " << i;
  EXPECT_EQ(verdicts.features.size(0), 500);
}

TEST(Judge, IsAFunctionOfItsConfig) {
  const Drawings drawings = draw(DrawnFor::reference, 0, 0, 20, small);
  const Verdicts first = Judge::train(brief(4)).look(drawings.pictures);
  EXPECT_TRUE(equal(first, Judge::train(brief(4)).look(drawings.pictures)));
  JudgeConfig other = brief(4);
  other.seed = 1;
  EXPECT_FALSE(equal(first, Judge::train(other).look(drawings.pictures)));
}

TEST(Judge, NeitherTheBatchNorOtherPicturesMatter) {
  const Drawings drawings = draw(DrawnFor::reference, 0, 0, 300, small);
  const Verdicts all = judge().look(drawings.pictures),
                 one = judge().look(drawings.pictures.narrow(0, 270, 1));
  EXPECT_TRUE(at::allclose(all.features[270], one.features[0], 1e-4, 1e-4));
}

TEST(Judge, StopsWhereItIsTold) {
  struct Enough {};
  std::int64_t steps = 0;
  const auto stop = [&](std::int64_t step, std::int64_t total, double loss) {
    EXPECT_EQ(total, 9);
    EXPECT_GT(loss, 0);
    steps = step;
    if (step == 2) throw Enough();
  };
  EXPECT_THROW(Judge::train(brief(9), stop), Enough);
  EXPECT_EQ(steps, 2);
}

TEST(Judge, ComesBackFromItsFile) {
  const Folder folder;
  const fs::path file = folder.path / "judge.safetensors";
  judge().write(file);
  const Judge again = Judge::read(file, small);
  EXPECT_EQ(again.config().steps, judge().config().steps);
  const Drawings drawings = draw(DrawnFor::yardstick, 5, 0, 20, small);
  EXPECT_TRUE(equal(again.look(drawings.pictures), judge().look(drawings.pictures)));
  const std::string other = error_of([&] { Judge::read(file, {32, 16}); });
  EXPECT_NE(other.find("size: expected 32x16, got 16x16"), std::string::npos) << other;
  std::ofstream(file, std::ios::binary) << "nothing";
  EXPECT_THROW(Judge::read(file, small), Error);
}

TEST(Judge, RefusesOtherPictures) {
  EXPECT_THROW(judge().look(at::zeros({2, 3, 16, 18}, at::kByte)), Error);
  EXPECT_THROW(judge().look(at::zeros({2, 3, 16, 16})), Error);
  EXPECT_THROW(Judge::train({.canvas = {4, 4}, .steps = 1}), Error);
  EXPECT_THROW(Judge::train(brief(0)), Error);
}

TEST(Drawn, SetsAreDisjointAndTheSameEachTime) {
  std::set<std::string> seen;
  std::size_t all = 0;
  for (const DrawnFor purpose : {DrawnFor::learning, DrawnFor::holding_out, DrawnFor::reference,
                                 DrawnFor::yardstick, DrawnFor::ceiling})
    for (const std::uint64_t seed : {0, 1, 2}) {
      const Drawings drawings = draw(purpose, seed, 0, 20, small);
      EXPECT_TRUE(at::equal(drawings.pictures, draw(purpose, seed, 0, 20, small).pictures));
      EXPECT_TRUE(at::equal(drawings.pictures.narrow(0, 7, 5), draw(purpose, seed, 7, 5, small).pictures));
      for (std::int64_t i = 0; i < 20; ++i, ++all) {
        const at::Tensor picture = drawings.pictures[i];
        seen.emplace(reinterpret_cast<const char*>(picture.const_data_ptr<std::uint8_t>()),
                     static_cast<std::size_t>(picture.numel()));
      }
    }
  EXPECT_EQ(seen.size(), all);
}

TEST(Drawn, AsOftenAsAskedFor) {
  const std::vector<std::int64_t> kinds = {2, 2, 0, 5};
  const Drawings drawings = draw(DrawnFor::reference, 0, 0, kinds, small);
  EXPECT_TRUE(at::equal(drawings.kinds, at::tensor(kinds, at::kLong)));
  EXPECT_LT(drawings.poses.select(1, 2).max().item<float>(), 0);  // a radius is less than a side
}

}  // namespace
}  // namespace pom::eval
