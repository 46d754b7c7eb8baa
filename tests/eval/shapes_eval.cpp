// Tests of what lies between a model and the judge.
#include "pom/eval/shapes_eval.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"
#include "pom/data/shapes.h"

namespace pom::eval {
namespace {

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

TEST(ShapesEval, FindsShapesByTheirNames) {
  EXPECT_EQ(shapes_named(std::vector<std::string>{"star", "circle"}).size(), 2u);
  const std::vector<std::int64_t> all = shapes_named(data::shape_names());
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<std::int64_t>(i));
  const std::string wrong = error_of([] { shapes_named(std::vector<std::string>{"circle", "sta"}); });
  EXPECT_NE(wrong.find("\"sta\""), std::string::npos) << wrong;
  EXPECT_NE(wrong.find("star"), std::string::npos) << wrong;
  error_of([] { shapes_named(std::vector<std::string>{"circle", "circle"}); });
  error_of([] { shapes_named({}); });
}

TEST(ShapesEval, AsksClassByClass) {
  EXPECT_EQ(each_so_often(std::vector<std::int64_t>{4, 1}, 3), (std::vector<std::int64_t>{4, 4, 4, 1, 1, 1}));
}

TEST(ShapesEval, PicturesBecomeTensorsAndBack) {
  io::Image image = io::make_image("test", 3, 2, 3);
  for (std::size_t i = 0; i < image.data.size(); ++i) image.data[i] = static_cast<std::uint8_t>(i * 7);
  const at::Tensor stacked = stack_pictures(std::vector{image, image});
  EXPECT_EQ(stacked.sizes(), at::IntArrayRef({2, 3, 2, 3}));
  EXPECT_EQ(stacked[1][2][1][0].item<int>(), image.row(1)[2]);  // blue of the first pixel in the second row
  EXPECT_EQ(unstack_pictures(stacked), (std::vector{image, image}));
  io::Image grey = io::make_image("test", 3, 2, 1);
  grey.data[4] = 9;
  const at::Tensor colours = stack_pictures(std::vector{grey});
  for (int c = 0; c < 3; ++c) EXPECT_EQ(colours[0][c][1][1].item<int>(), 9);
  error_of([&] { stack_pictures(std::vector{image, io::make_image("test", 2, 2, 3)}); });
}

// Drawings in place of pictures: what is judged is as diverse as what stands beside it, and none of it the
// same.
TEST(ShapesEval, JudgesPicturesBesideDrawings) {
  const Judge judge = Judge::train({.canvas = {16, 16}, .steps = 3, .batch = 16});
  const std::vector<std::int64_t> asked = each_so_often(std::vector<std::int64_t>{0, 3}, 8);
  const at::Tensor pictures = draw(DrawnFor::ceiling, 0, 0, asked, {16, 16}).pictures;
  const Repetition first = judge_repetition(judge, pictures, asked, 0, 0),
                   second = judge_repetition(judge, pictures, asked, 0, 1);
  EXPECT_TRUE(at::equal(first.pictures.features, second.pictures.features));
  EXPECT_FALSE(at::equal(first.drawings.features, second.drawings.features));
  EXPECT_FALSE(at::equal(first.drawings.features, first.others.features));
  EXPECT_FALSE(at::equal(first.drawings.features, first.pictures.features));
  EXPECT_EQ(first.others.features.sizes(), first.pictures.features.sizes());
}

}  // namespace
}  // namespace pom::eval
