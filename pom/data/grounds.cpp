#include "pom/data/grounds.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "pom/data/exact_math.h"
#include "pom/data/sprites.h"
#include "pom/data/uniform.h"

namespace pom::data {
namespace {

struct GroundColour {
  const char* name;
  float colour[3];
};

constexpr std::array grounds = {
    GroundColour{"black", {0.08f, 0.08f, 0.09f}}, GroundColour{"white", {0.93f, 0.93f, 0.94f}},
    GroundColour{"grey", {0.52f, 0.52f, 0.53f}},  GroundColour{"blue", {0.13f, 0.19f, 0.42f}},
    GroundColour{"green", {0.12f, 0.33f, 0.19f}}, GroundColour{"red", {0.41f, 0.12f, 0.13f}},
};

// In this order, which is part of every clip's identity.
enum GroundDraw {
  paint_style,
  paint_tint,
  paint_change = paint_tint + 3,
  paint_lighter,
  paint_angle,
  paint_cycles,
  paint_crossed,
  paint_count
};
static_assert(paint_count == ground_numbers);

}  // namespace

const std::vector<std::string>& ground_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const GroundColour& ground : grounds) all.emplace_back(ground.name);
    return all;
  }();
  return names;
}

std::int64_t choose_ground(std::span<const std::int64_t> hues, float u) {
  std::vector<std::int64_t> fitting;
  for (std::int64_t g = 0; g < std::ssize(grounds); ++g) {
    const char* name = grounds[static_cast<std::size_t>(g)].name;
    const auto clashes = [&](std::int64_t hue) { return hue_names()[static_cast<std::size_t>(hue)] == name; };
    if (std::ranges::none_of(hues, clashes)) fitting.push_back(g);
  }
  return fitting[static_cast<std::size_t>(one_of(std::ssize(fitting), u))];
}

void paint_ground(Shape& background, std::int64_t ground, const float* u) {
  const float* colour = grounds[static_cast<std::size_t>(ground)].colour;
  background.background = one_of(std::ssize(background_names()), u[paint_style]);
  const float change = between(0.05f, 0.1f, u[paint_change]) * (u[paint_lighter] < 0.5f ? -1.0f : 1.0f);
  for (int c = 0; c < 3; ++c) {
    background.ground[0][c] = colour[c] + between(-0.03f, 0.03f, u[paint_tint + c]);
    background.ground[1][c] = background.ground[0][c] + change;
  }
  background.ground_angle = static_cast<float>(2 * exact::pi) * u[paint_angle];
  background.ground_cycles = between(2, 4, u[paint_cycles]);
  background.ground_crossed = u[paint_crossed] < 0.5f;
}

}  // namespace pom::data
