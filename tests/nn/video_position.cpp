// Codes of places and times against values written out by hand; which channels are whose.
// python/tests/reference_dipom.py and reference_vdipom.py have all of them in plain torch.
#include "pom/nn/video_position.h"

#include <cmath>
#include <gtest/gtest.h>
#include <numbers>

#include <ATen/ATen.h>

#include "pom/base/error.h"

namespace pom::nn {
namespace {

constexpr double kPi = std::numbers::pi;

template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void expect_values(const at::Tensor& row, const std::vector<double>& expected) {
  ASSERT_EQ(row.numel(), std::ssize(expected));
  for (std::int64_t i = 0; i < row.numel(); ++i)
    EXPECT_NEAR(row[i].item<double>(), expected[static_cast<std::size_t>(i)], 1e-15) << "channel " << i;
}

TEST(PositionCode, OfOddFrequencies) {
  const at::Tensor code = position_code(2, 3, 8, at::kDouble);
  ASSERT_EQ(code.sizes(), at::IntArrayRef({6, 8}));
  expect_values(code[0], {0, 0, 1, 1, 0, 0, 1, 1});
  expect_values(code[4], {1, -1, 0, 0, 0, 0, -1, -1});  // the second row, the column in the middle
}

TEST(PositionCode, OfNarrowFrequencies) {
  const at::Tensor code = position_code(2, 3, 8, at::kDouble, PositionForm::narrow);
  const auto axis = [](double u) {
    const double slow = 0.5 * (kPi * u + 1), fast = 2 * (kPi * u + 1);
    return std::vector<double>{std::sin(slow), std::sin(fast), std::cos(slow), std::cos(fast)};
  };
  const auto place = [&](double x, double y) {
    std::vector<double> both = axis(x);
    for (const double value : axis(y)) both.push_back(value);
    return both;
  };
  expect_values(code[0], place(0, 0));
  expect_values(code[4], place(0.5, 1));
  expect_values(code[5], place(1, 1));
  // An axis of one place is at its beginning, and one frequency is the slowest.
  expect_values(position_code(1, 1, 4, at::kDouble, PositionForm::narrow)[0],
                {std::sin(0.5), std::cos(0.5), std::sin(0.5), std::cos(0.5)});
}

TEST(ClipCode, ChannelsAreOfThePlaceOrOfTheTime) {
  const at::Tensor numbers = at::arange(3);
  const TimeCode relative = TimeCode::named("relative", 32).of_clip(3);
  const auto zeros = [](const at::Tensor& t) { return (t == 0).all().item<bool>(); };
  const at::Tensor odd = clip_place_code(2, 2, 16), odd_time = clip_time_code(numbers, 16, relative);
  EXPECT_TRUE(zeros(odd.slice(1, 8)) && zeros(odd_time.slice(1, 0, 8)));
  EXPECT_FALSE(zeros(odd.slice(1, 0, 8)) || zeros(odd_time.slice(1, 8)));
  const at::Tensor narrow = clip_place_code(2, 2, 24, at::kFloat, PositionForm::narrow),
                   narrow_time = clip_time_code(numbers, 24, relative, at::kFloat, PositionForm::narrow);
  EXPECT_TRUE(zeros(narrow.slice(1, 0, 12)) && zeros(narrow_time.slice(1, 12)));
  EXPECT_TRUE(at::equal(narrow.slice(1, 12), position_code(2, 2, 12, at::kFloat, PositionForm::narrow)));
  EXPECT_TRUE(at::equal(narrow_time.slice(1, 0, 12), time_code(numbers, 12, relative).to(at::kFloat)));
}

TEST(TimeCode, RelativeToTheClip) {
  const TimeCode code = TimeCode::named("relative", 32);
  const at::Tensor five = time_code(at::arange(5), 4, code.of_clip(5));
  expect_values(five[0], {std::sin(0.5), std::sin(2.0), std::cos(0.5), std::cos(2.0)});
  const double slow = 0.5 * (kPi / 2 + 1), fast = 2 * (kPi / 2 + 1);
  expect_values(five[2], {std::sin(slow), std::sin(fast), std::cos(slow), std::cos(fast)});
  const at::Tensor nine = time_code(at::arange(9), 4, code.of_clip(9));
  EXPECT_TRUE(at::allclose(five, nine.slice(0, 0, 9, 2), 1e-15, 1e-15));  // twice as fine, the same ends
  expect_values(time_code(at::arange(1), 2, code.of_clip(1))[0], {std::sin(0.5), std::cos(0.5)});
  EXPECT_NE(message_of([&] { time_code(at::arange(1), 2, code); }).find("length: expected the blocks"),
            std::string::npos);
}

TEST(PositionForms, UnknownOnesAreErrors) {
  EXPECT_EQ(message_of([] { position_form("narow"); }),
            "position code: form: unknown name \"narow\"; did you mean \"narrow\"?");
  EXPECT_NE(message_of([] { TimeCode::named("relatif", 32); }).find("did you mean \"relative\""),
            std::string::npos);
  EXPECT_NE(message_of([] {
              clip_place_code(1, 1, 12, at::kFloat, PositionForm::narrow);
            }).find("dim: expected a multiple of 8"),
            std::string::npos);
}

}  // namespace
}  // namespace pom::nn
