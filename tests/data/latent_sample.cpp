// Tests of the arrays of files as numbers: halves exactly, and deviations of log-variances.
#include "pom/data/latent_sample.h"

#include "tests/data/support.h"
#include <bit>
#include <cmath>
#include <cstring>

#include <c10/util/Half.h>

namespace pom::data {
namespace {

template <class Element>
io::NpyArray array_of(io::NpyType type, const std::vector<Element>& elements) {
  io::NpyArray array;
  array.header.type = type;
  array.header.element = sizeof(Element);
  array.header.shape = {std::ssize(elements)};
  array.header.count = elements.size();
  array.elements.assign(reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(Element));
  return array;
}

TEST(LatentSample, EveryHalf) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  const std::vector<float> values = floats_of(array_of(io::NpyType::half, halves), "test");
  for (std::size_t i = 0; i < halves.size(); ++i) {
    const float expected = c10::Half(halves[i], c10::Half::from_bits());
    if (std::isnan(expected))
      EXPECT_TRUE(std::isnan(values[i])) << i;
    else
      EXPECT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(expected)) << i;
  }
  const std::vector<std::uint16_t> again = halves_of(array_of(io::NpyType::single, values), "test");
  for (std::size_t i = 0; i < halves.size(); ++i)
    EXPECT_TRUE(std::isnan(values[i]) || again[i] == halves[i]) << i;
}

TEST(LatentSample, FloatsAreRoundedAsTorchDoes) {
  std::vector<float> values;
  std::uint32_t state = 1;
  for (int i = 0; i < 20000; ++i) {
    state = state * 1664525u + 1013904223u;
    const auto value = std::bit_cast<float>(0x30000000u + state % 0x18000000u);
    values.push_back(i % 2 == 0 ? value : -value);
  }
  values.insert(values.end(),
                {65504.0f, 65519.99f, 65520.0f, 1e9f, 0x1p-25f, 0x1.8p-24f, 0x1p-14f, INFINITY});
  const std::vector<std::uint16_t> halves = halves_of(array_of(io::NpyType::single, values), "test");
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(halves[i], c10::Half(values[i]).x) << values[i];
}

TEST(LatentSample, Deviations) {
  std::vector<float> values;
  for (float v = -40; v < 30; v += 0.037f) values.push_back(v);
  std::vector<float> deviations = values;
  deviations_of(deviations);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double exact = std::exp(std::clamp(static_cast<double>(values[i]), -30.0, 20.0) / 2);
    EXPECT_NEAR(deviations[i] / exact, 1, 6.1e-8) << values[i];
  }
  std::vector<float> none = {NAN};
  deviations_of(none);
  EXPECT_TRUE(std::isnan(none[0]));
}

TEST(LatentSample, DrawnAndScaled) {
  std::vector<float> values(19, 2);
  add_drawn(values, std::vector<float>(19, 0.5f), std::vector<float>(19, -3));
  EXPECT_EQ(values, std::vector<float>(19, 0.5f));
  EXPECT_TRUE(scale_latent(values, 0.25f, 4));
  EXPECT_EQ(values, std::vector<float>(19, 1));
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    values[17] = bad;
    EXPECT_FALSE(scale_latent(values, 0, 1));
  }
}

TEST(LatentSample, OtherTypes) {
  const auto integers = array_of<std::int8_t>(io::NpyType::int8, {-127, 5});
  EXPECT_EQ(floats_of(integers, "test"), (std::vector<float>{-127, 5}));
  EXPECT_EQ(flags_of(integers, "test"), (std::vector<std::uint8_t>{1, 1}));
  EXPECT_EQ(integer_of(array_of<std::int64_t>(io::NpyType::int64, {-3}), "test"), -3);
  EXPECT_NE(error_of([&] { integer_of(integers, "here"); }).find("here: expected one number"),
            std::string::npos);
  EXPECT_NE(error_of([&] { halves_of(integers, "here"); }).find("here: expected <f2 or <f4, got |i1"),
            std::string::npos);
  EXPECT_NE(
      error_of([&] { floats_of(array_of<std::int64_t>(io::NpyType::int64, {1}), "here"); }).find("got <i8"),
      std::string::npos);
  EXPECT_NEAR(deviation_of(std::vector<float>{1, 3, 1, 3}), 1, 1e-9);
}

}  // namespace
}  // namespace pom::data
