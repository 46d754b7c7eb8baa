// Tests of the drawings: always the same bytes, the right areas, soft edges, and everything as often as it
// should be.
#include "pom/data/shapes.h"

#include "tests/data/support.h"
#include <array>
#include <cmath>
#include <map>
#include <numbers>

#include "pom/data/exact_math.h"
#include "pom/io/sha256.h"

namespace pom::data {
namespace {

using Pixels = std::vector<std::uint8_t>;

Pixels drawn(const Shape& shape, std::int64_t width, std::int64_t height) {
  Pixels pixels(static_cast<std::size_t>(3 * width * height));
  draw_shape(shape, width, height, pixels);
  return pixels;
}

std::string hash(const Pixels& pixels) {
  io::Sha256 sha;
  sha.update(std::as_bytes(std::span(pixels)));
  return sha.hex();
}

// White on black.
Shape stencil(std::int64_t kind, float radius, float angle = 0) {
  Shape shape;
  shape.kind = kind;
  shape.radius = radius;
  shape.angle = angle;
  for (float& c : shape.colour) c = 1;
  return shape;
}

double mean(const Pixels& pixels) {
  double sum = 0;
  for (const std::uint8_t p : pixels) sum += p;
  return sum / static_cast<double>(pixels.size());
}

// Of a shape of radius 1.
double area(const std::string& name) {
  using std::numbers::pi;
  const auto lens = [](double a, double b, double d) {  // of two discs whose centres are d apart
    const double x = (d * d + a * a - b * b) / (2 * d);
    const double h = std::sqrt(a * a - x * x);
    return a * a * std::acos(x / a) + b * b * std::acos((d - x) / b) - d * h;
  };
  const std::map<std::string, double> areas = {
      {"circle", pi * 0.92 * 0.92},
      {"square", 1.44 * 1.44},
      {"triangle", 3 * std::sqrt(3) / 4},
      {"star", 5 * 0.42 * std::sin(pi / 5)},
      {"heart", 1.12 * 1.12 + pi * 0.56 * 0.56},
      {"ring", pi * (0.94 * 0.94 - 0.5 * 0.5)},
      {"cross", 2 * 1.84 * 0.58 - 0.58 * 0.58},
      {"moon", pi * 0.95 * 0.95 - lens(0.95, 0.72, std::hypot(0.5, 0.12))},
      {"diamond", 2 * 0.62},
      {"hexagon", 1.5 * std::sqrt(3) * 0.98 * 0.98},
  };
  return areas.at(name);
}

TEST(Shapes, NamesAreThoseOfTheModel) {
  EXPECT_EQ(shape_names(), (std::vector<std::string>{"circle", "square", "triangle", "star", "heart", "ring",
                                                     "cross", "moon", "diamond", "hexagon"}));
  EXPECT_EQ(hue_names(),
            (std::vector<std::string>{"red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink"}));
  EXPECT_EQ(background_names(), (std::vector<std::string>{"plain", "graded", "textured"}));
}

// The bytes of drawings are a promise: recipes, checkpoints and the shipped model stand on them.
TEST(Shapes, BytesNeverChange) {
  io::Sha256 all;
  for (std::int64_t i = 0; i < 500; ++i) {
    const Pixels pixels = drawn(shape_at(7, i), 64, 64);
    all.update(std::as_bytes(std::span(pixels)));
  }
  EXPECT_EQ(all.hex(), "6dc53c7870e2c6114b18dedd8c3079aa63fb9a7504a5db4a5df1ffbc34ef1546");
  EXPECT_EQ(hash(drawn(shape_at(0, 0), 64, 64)),
            "d47070cfd01a3d16ed4cba4b51200a7d15de6c083feba072e22363d52b1cc83e");
  EXPECT_EQ(hash(drawn(shape_at(0, 17), 256, 256)),
            "bbf269e8a67a36cd2d25def1d09739ddc2276974ebc450ab526ef6e9437a0f95");
  EXPECT_EQ(hash(drawn(shape_at(~std::uint64_t{0}, std::int64_t{1} << 40), 33, 17)),
            "54793fdeeaa092d0d1da488abbfd01d7a959d1b8c1500718539b07aeb3a1440e");
}

TEST(Shapes, EveryDrawingIsAnother) {
  std::map<std::string, int> seen;
  for (std::int64_t i = 0; i < 100; ++i)
    for (const std::uint64_t seed : {0, 1}) ++seen[hash(drawn(shape_at(seed, i), 24, 24))];
  EXPECT_EQ(seen.size(), 200u);
  EXPECT_EQ(drawn(shape_at(3, 5), 24, 24), drawn(shape_at(3, 5), 24, 24));
}

TEST(Shapes, AGivenClassChangesNothingElse) {
  const Shape any = shape_at(5, 9);
  for (std::int64_t kind = 0; kind < 10; ++kind) {
    const Shape given = shape_at(5, 9, kind);
    EXPECT_EQ(given.kind, kind);
    EXPECT_EQ(given.hue, any.hue);
    EXPECT_EQ(given.radius, any.radius);
    EXPECT_EQ(given.angle, any.angle);
  }
  EXPECT_EQ(drawn(shape_at(5, 9, any.kind), 32, 32), drawn(any, 32, 32));
}

TEST(Shapes, CoverTheirArea) {
  for (std::int64_t kind = 0; kind < 10; ++kind) {
    const std::string& name = shape_names()[static_cast<std::size_t>(kind)];
    for (const float radius : {0.23f, 0.31f, 0.45f})
      for (const float angle : {-0.5f, 0.0f, 0.2f}) {
        const double expected = area(name) * radius * radius;
        EXPECT_NEAR(mean(drawn(stencil(kind, radius, angle), 256, 256)) / 255, expected, 0.002 * expected)
            << name;
        EXPECT_NEAR(mean(drawn(stencil(kind, radius, angle), 64, 64)) / 255, expected, 0.006 * expected)
            << name;
      }
  }
}

TEST(Shapes, TurnAgainstTheClock) {
  const Pixels upright = drawn(stencil(2, 0.4f), 64, 64), turned = drawn(stencil(2, 0.4f, -0.5f), 64, 64);
  const auto tip = [](const Pixels& pixels) {  // the column of the brightest pixel in the first lit row
    std::size_t i = 0;
    while (pixels[i] < 100) ++i;
    return i % 64;
  };
  EXPECT_NEAR(static_cast<double>(tip(upright)), 31.5, 1.5);
  EXPECT_LT(tip(drawn(stencil(2, 0.4f, 0.5f), 64, 64)), 26u);
  EXPECT_GT(tip(turned), 37u);
}

// A pixel of a small picture is the mean of the pixels of a large one that it stands for.
TEST(Shapes, SmallPicturesAreLargeOnesSeenFromAfar) {
  double total = 0;
  for (std::int64_t i = 0; i < 60; ++i) {
    const Shape shape = shape_at(2, i);
    const Pixels small = drawn(shape, 64, 64), large = drawn(shape, 256, 256);
    double difference = 0, worst = 0;
    for (std::size_t c = 0; c < 3; ++c)
      for (std::size_t y = 0; y < 64; ++y)
        for (std::size_t x = 0; x < 64; ++x) {
          double sum = 0;
          for (std::size_t k = 0; k < 16; ++k) sum += large[(c * 256 + 4 * y + k / 4) * 256 + 4 * x + k % 4];
          const double gap = std::abs(sum / 16 - small[(c * 64 + y) * 64 + x]);
          difference += gap;
          worst = std::max(worst, gap);
        }
    total += difference / (3 * 64 * 64);
    EXPECT_LT(worst, 36) << i;
    EXPECT_NEAR(mean(small), mean(large), 0.1) << i;
  }
  EXPECT_LT(total / 60, 0.3);
}

TEST(Shapes, EdgesAreSoft) {
  const Pixels pixels = drawn(stencil(0, 0.4f), 64, 64);
  std::size_t between = 0;
  for (std::size_t i = 0; i < 64 * 64; ++i) between += pixels[i] > 0 && pixels[i] < 255 ? 1 : 0;
  EXPECT_GT(between, 100u);  // of a circle of 148 pixels
  EXPECT_LT(between, 260u);
}

TEST(Shapes, AnyResolution) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> sizes = {{1, 1},   {1, 7},   {2, 3},  {33, 17},
                                                                    {17, 33}, {8, 200}, {96, 64}};
  for (const auto& [width, height] : sizes)
    for (std::int64_t i = 0; i < 30; ++i) drawn(shape_at(4, i), width, height);
  // The middle square of a wide picture is the picture of that square, where the ground is plain.
  for (std::int64_t i = 0; i < 30; ++i) {
    Shape shape = shape_at(4, i);
    shape.background = 0;
    const Pixels square = drawn(shape, 32, 32), wide = drawn(shape, 48, 32);
    for (std::size_t y = 0; y < 96; ++y)
      for (std::size_t x = 0; x < 32; ++x) ASSERT_EQ(wide[y * 48 + 8 + x], square[y * 32 + x]) << i;
  }
}

// Drawn at half the size in the middle of a picture of twice the side, nothing leaves the middle.
TEST(Shapes, StayInsideThePicture) {
  for (std::int64_t i = 0; i < 2000; ++i) {
    const Shape any = shape_at(11, i);
    Shape shape = stencil(any.kind, any.radius / 2, any.angle);
    shape.x = any.x / 2;
    shape.y = any.y / 2;
    const Pixels pixels = drawn(shape, 128, 128);
    for (std::size_t k = 0; k < 128; ++k)
      for (const std::size_t edge : {31u, 96u}) {  // the first pixels outside
        ASSERT_LE(pixels[edge * 128 + k], 30) << i;
        ASSERT_LE(pixels[k * 128 + edge], 30) << i;
      }
  }
}

// Counts of n equally likely outcomes in `total` draws: within five standard deviations.
void expect_even(const std::vector<int>& counts, int total) {
  const double p = 1.0 / static_cast<double>(counts.size());
  for (const int count : counts) EXPECT_NEAR(count, total * p, 5 * std::sqrt(total * p * (1 - p)));
}

TEST(Shapes, EverythingOccursAsOftenAsItShould) {
  constexpr int total = 20000;
  std::vector<int> kinds(10), hues(8), backgrounds(3), pairs(80);
  for (int i = 0; i < total; ++i) {
    const Shape shape = shape_at(123, i);
    ++kinds.at(static_cast<std::size_t>(shape.kind));
    ++hues.at(static_cast<std::size_t>(shape.hue));
    ++backgrounds.at(static_cast<std::size_t>(shape.background));
    ++pairs.at(static_cast<std::size_t>(8 * shape.kind + shape.hue));
  }
  expect_even(kinds, total);
  expect_even(hues, total);
  expect_even(backgrounds, total);
  expect_even(pairs, total);
}

TEST(Shapes, PosesFillTheirRange) {
  float least = 1, most = 0, leftmost = 1, rightmost = -1, turn_least = 9, turn_most = -9;
  double logs = 0;
  for (int i = 0; i < 20000; ++i) {
    const Shape shape = shape_at(321, i);
    least = std::min(least, shape.radius);
    most = std::max(most, shape.radius);
    leftmost = std::min(leftmost, shape.x);
    rightmost = std::max(rightmost, shape.x);
    turn_least = std::min(turn_least, shape.angle);
    turn_most = std::max(turn_most, shape.angle);
    logs += std::log2(shape.radius / 0.23);
    ASSERT_LE(std::abs(shape.x), 0.5f - 0.9f * shape.radius);
    ASSERT_LE(std::abs(shape.y), 0.5f - 0.9f * shape.radius);
  }
  EXPECT_NEAR(least, 0.23, 1e-4);
  EXPECT_NEAR(most, 0.46, 1e-4);
  EXPECT_NEAR(logs / 20000, 0.5, 0.01);
  EXPECT_LT(leftmost, -0.27f);
  EXPECT_GT(rightmost, 0.27f);
  EXPECT_NEAR(turn_least, -std::numbers::pi / 6, 1e-3);
  EXPECT_NEAR(turn_most, std::numbers::pi / 6, 1e-3);
}

TEST(Shapes, StandOutFromTheirGround) {
  for (int i = 0; i < 5000; ++i) {
    const Shape shape = shape_at(55, i);
    for (const auto& tint : shape.ground) {
      double squares = 0;
      for (int c = 0; c < 3; ++c) squares += std::pow(shape.colour[c] - tint[c], 2);
      ASSERT_GT(std::sqrt(squares), 0.3) << i;
    }
  }
}

TEST(Shapes, GroundsDiffer) {
  Shape shape = stencil(0, 0.2f);
  shape.ground_cycles = 4;
  for (int c = 0; c < 3; ++c) {
    shape.ground[0][c] = 0.2f;
    shape.ground[1][c] = 0.6f;
  }
  const auto corner_values = [&](std::int64_t kind) {
    shape.background = kind;
    const Pixels pixels = drawn(shape, 64, 64);
    return std::array<int, 2>{pixels[0], pixels[63]};
  };
  EXPECT_EQ(corner_values(0), (std::array<int, 2>{51, 51}));
  const auto graded = corner_values(1);
  EXPECT_NEAR(graded[0], 51, 1);
  EXPECT_NEAR(graded[1], 152, 1);
  shape.background = 2;
  const Pixels waves = drawn(shape, 64, 64);
  for (std::size_t x = 0; x < 64; ++x) {
    const double place = (static_cast<double>(x) + 0.5) / 64 - 0.5;
    EXPECT_NEAR(waves[x], 255 * (0.2 + 0.05 * std::sin(2 * std::numbers::pi * 4 * place)), 0.51) << x;
  }
  shape.ground_crossed = true;
  const Pixels crossed = drawn(shape, 64, 64);
  const double up = 0.5 - 0.5 / 64;
  for (std::size_t x = 0; x < 64; ++x) {
    const double place = (static_cast<double>(x) + 0.5) / 64 - 0.5;
    const double wave = std::sin(8 * std::numbers::pi * place) * std::sin(8 * std::numbers::pi * up);
    EXPECT_NEAR(crossed[x], 255 * (0.2 + 0.05 * wave), 0.51) << x;
  }
}

TEST(Shapes, AsADataSet) {
  const DataConfig config{.size = {48, 32}};
  const auto endless = make_shapes(config, 9);
  EXPECT_EQ(endless->size(), 0);
  EXPECT_EQ(endless->classes(), shape_names());
  EXPECT_EQ(endless->shape(), (std::vector<std::int64_t>{3, 32, 48}));
  EXPECT_FALSE(endless->latents());
  EXPECT_EQ(endless->name_of(17), "shapes item 17");
  const Example example = endless->get(17, 0);
  EXPECT_EQ(example.label, shape_at(9, 17).kind);
  EXPECT_EQ(bytes_of(example.picture), drawn(shape_at(9, 17), 48, 32));
  const auto part = make_shapes(config, 9, 5, 1000);
  EXPECT_EQ(part->size(), 5);
  EXPECT_EQ(bytes_of(part->get(3, 0).picture), drawn(shape_at(9, 1003), 48, 32));
  EXPECT_NE(error_of([&] { part->get(5, 0); }).find("expected 0 to 4, got 5"), std::string::npos);
}

TEST(Shapes, HalfAreMirroredWhereAsked) {
  const auto still = make_shapes({.size = {16, 16}}, 9),
             moved = make_shapes({.size = {16, 16}, .flip = true}, 9);
  int mirrored = 0, changed = 0;
  for (std::int64_t i = 0; i < 400; ++i) {
    const at::Tensor a = still->get(i, 0).picture, b = moved->get(i, 0).picture, c = moved->get(i, 1).picture;
    const bool same = bytes_of(a) == bytes_of(b);
    EXPECT_TRUE(same || bytes_of(a.flip({2})) == bytes_of(b));
    mirrored += same ? 0 : 1;
    changed += bytes_of(b) == bytes_of(c) ? 0 : 1;
  }
  EXPECT_NEAR(mirrored, 200, 50);
  EXPECT_NEAR(changed, 200, 50);
}

TEST(Shapes, MistakesAreNamed) {
  Pixels pixels(12);
  const auto mentions = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  mentions(error_of([&] { draw_shape({}, 3, 3, pixels); }), "expected 27 bytes, got 12");
  mentions(error_of([&] { draw_shape({.kind = 10}, 2, 2, pixels); }), "kind: expected 0 to 9, got 10");
  mentions(error_of([&] { draw_shape({.background = 3}, 2, 2, pixels); }), "background: expected 0 to 2");
  mentions(error_of([&] { draw_shape({.radius = 0}, 2, 2, pixels); }), "radius");
  mentions(error_of([&] { draw_shape({}, 0, 2, pixels); }), "draw_shape");
  mentions(error_of([&] { shape_at(0, -1); }), "index");
  mentions(error_of([&] { shape_at(0, 0, 10); }), "kind");
  mentions(error_of([&] { make_shapes({.size = {64}}, 0); }), "data: size: expected width and height");
}

TEST(ExactMath, AgreesWithTheLibrary) {
  for (int i = -4000; i <= 4000; ++i) {
    const double angle = i * 0.01;
    const exact::Direction way = exact::direction(angle);
    ASSERT_NEAR(way.cosine, std::cos(angle), 1e-14) << angle;
    ASSERT_NEAR(way.sine, std::sin(angle), 1e-14) << angle;
  }
  for (int i = 0; i <= 1000; ++i) ASSERT_NEAR(exact::power_of_two(i / 1000.0), std::exp2(i / 1000.0), 1e-14);
}

}  // namespace
}  // namespace pom::data
