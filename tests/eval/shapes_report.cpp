// Tests of what verdicts amount to, on verdicts that are made up.
#include "pom/eval/shapes_report.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/data/shapes.h"

namespace pom::eval {
namespace {

Verdicts verdicts(const std::vector<std::int64_t>& kinds, const std::vector<std::int64_t>& hues,
                  const std::vector<float>& poses) {
  const auto count = static_cast<std::int64_t>(kinds.size());
  return {at::tensor(kinds, at::kLong), at::tensor(hues, at::kLong), at::tensor(poses).reshape({count, 3}),
          at::tensor(poses).reshape({count, 3})};
}

const std::vector<std::int64_t> classes = {3, 1}, asked = {3, 3, 3, 3, 1, 1};

Verdicts example() {
  return verdicts({3, 3, 1, 0, 1, 1}, {0, 0, 1, 1, 2, 2},
                  {-1, 0, 2, 1, 0, 2, -1, 0, 2, 1, 0, 2, 0, 5, 1, 0, 7, 3});
}

TEST(ShapesReport, CountsWhatIsRecognised) {
  const Measures m = measure(example(), asked, classes);
  EXPECT_DOUBLE_EQ(m.recognised, 4.0 / 6);
  ASSERT_EQ(m.confusion.size(), 2u);
  ASSERT_EQ(m.confusion[0].size(), data::shape_names().size());
  EXPECT_EQ(m.confusion[0][3], 2);  // the class asked for first is shape 3
  EXPECT_EQ(m.confusion[0][1], 1);
  EXPECT_EQ(m.confusion[0][0], 1);
  EXPECT_EQ(m.confusion[1][1], 2);
  EXPECT_EQ(m.hues[0], 2);
  EXPECT_EQ(m.hues[2], 2);
}

// Within the classes: one has two hues (1 bit) and the other has one, although there are three in all.
TEST(ShapesReport, MeasuresDiversityWithinClasses) {
  const Diversity d = measure(example(), asked, classes).diversity;
  EXPECT_DOUBLE_EQ(d.hue_entropy, 0.5);
  EXPECT_NEAR(d.x, std::sqrt(4.0 / 3) / 2, 1e-6);
  EXPECT_NEAR(d.y, std::sqrt(2.0) / 2, 1e-6);
  EXPECT_NEAR(d.log2_radius, std::sqrt(2.0) / 2, 1e-6);
}

TEST(ShapesReport, RefusesVerdictsOnOtherPictures) {
  EXPECT_THROW(measure(example(), std::vector<std::int64_t>{3, 3, 1}, classes), Error);
  EXPECT_THROW(measure(example(), std::vector<std::int64_t>{3, 3, 3, 3, 1, 2}, classes), Error);
  EXPECT_THROW(measure(example(), std::vector<std::int64_t>{3, 3, 3, 3, 3, 1}, classes), Error);  // one of 1
  EXPECT_THROW(make_report({}, asked, classes), Error);
}

TEST(ShapesReport, SpreadsOverValues) {
  const Spread one = spread_of(std::vector<double>{4.0}),
               three = spread_of(std::vector<double>{1.0, 2.0, 6.0});
  EXPECT_DOUBLE_EQ(one.mean, 4);
  EXPECT_DOUBLE_EQ(one.deviation, 0);
  EXPECT_DOUBLE_EQ(three.mean, 3);
  EXPECT_DOUBLE_EQ(three.deviation, std::sqrt(7.0));
}

TEST(ShapesReport, SetsPicturesBesideDrawings) {
  Verdicts better = example(), drawings = example();
  better.kinds = at::tensor(asked, at::kLong);
  drawings.kinds = better.kinds;
  drawings.poses = example().poses * 2;
  const std::vector<Repetition> repetitions = {{example(), drawings, drawings},
                                               {better, drawings, example()}};
  const ShapesReport r = make_report(repetitions, asked, classes);
  EXPECT_EQ(r.count, 6);
  EXPECT_EQ(r.repetitions, 2);
  EXPECT_EQ(r.classes, (std::vector<std::string>{data::shape_names()[3], data::shape_names()[1]}));
  EXPECT_DOUBLE_EQ(r.recognised.mean, (4.0 / 6 + 1) / 2);
  EXPECT_NEAR(r.recognised.deviation, (1 - 4.0 / 6) / std::sqrt(2.0), 1e-12);
  EXPECT_DOUBLE_EQ(r.drawings_recognised.mean, 1);
  EXPECT_DOUBLE_EQ(r.by_class[0].mean, 0.75);
  EXPECT_DOUBLE_EQ(r.by_class[1].mean, 1);
  EXPECT_EQ(r.confusion[0][3], 6);
  EXPECT_EQ(r.hue_counts[1], 4);
  EXPECT_DOUBLE_EQ(r.hue_entropy.ratio.mean, 1);
  EXPECT_DOUBLE_EQ(r.x.ratio.mean, 0.5);
  EXPECT_DOUBLE_EQ(r.x.ratio.deviation, 0);
  EXPECT_NEAR(r.frechet.mean, 0, 1e-6);  // features are the same here, whatever else differs
  EXPECT_NEAR(r.frechet_of_drawings.mean, 0, 1e-6);
}

TEST(ShapesReport, MeasuresHowFarFeaturesAre) {
  Verdicts far = example();
  far.features = far.features + 2;
  const ShapesReport r = make_report(std::vector<Repetition>{{far, example(), example()}}, asked, classes);
  EXPECT_NEAR(r.frechet.mean, 12, 1e-5);  // 2² in each of three features
  EXPECT_NEAR(r.frechet_of_drawings.mean, 0, 1e-6);
}

}  // namespace
}  // namespace pom::eval
