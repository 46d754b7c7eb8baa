// Which drawing a number stands for, and the data set of all of them. draw_shape.cpp draws.
#include "pom/data/shapes.h"

#include <algorithm>
#include <array>

#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/base/noise.h"
#include "pom/data/exact_math.h"
#include "pom/data/mirror.h"
#include "pom/data/streams.h"
#include "pom/data/uniform.h"

namespace pom::data {
namespace {

struct Kind {
  const char* name;
  float reach;  // from the centre to the farthest point, in radii: what has to fit into the picture
};

constexpr std::array kinds = {
    Kind{"circle", 0.92f},  Kind{"square", 1.0183f}, Kind{"triangle", 1.083f}, Kind{"star", 1.0f},
    Kind{"heart", 1.0313f}, Kind{"ring", 0.94f},     Kind{"cross", 0.9647f},   Kind{"moon", 0.95f},
    Kind{"diamond", 1.0f},  Kind{"hexagon", 0.98f},
};

struct Hue {
  const char* name;
  float colour[3];
};

constexpr std::array hues = {
    Hue{"red", {0.90f, 0.10f, 0.12f}},    Hue{"orange", {1.00f, 0.52f, 0.05f}},
    Hue{"yellow", {1.00f, 0.90f, 0.10f}}, Hue{"green", {0.10f, 0.70f, 0.20f}},
    Hue{"cyan", {0.05f, 0.80f, 0.90f}},   Hue{"blue", {0.10f, 0.25f, 0.90f}},
    Hue{"purple", {0.55f, 0.15f, 0.80f}}, Hue{"pink", {1.00f, 0.40f, 0.70f}},
};

// The uniform numbers of a drawing, in this order. Their places are part of every drawing's identity: new
// ones come at the end.
enum Draw {
  draw_kind,
  draw_hue,
  draw_background,
  draw_radius,
  draw_x,
  draw_y,
  draw_angle,
  draw_colour,
  draw_dark = draw_colour + 3,
  draw_level,
  draw_tints,
  draw_ground_angle = draw_tints + 6,
  draw_cycles,
  draw_crossed,
  draw_count
};
constexpr std::int64_t numbers_each = 32;
static_assert(draw_count <= numbers_each);

using Numbers = std::array<float, numbers_each>;

Numbers numbers_of(std::uint64_t seed, std::int64_t index) {
  check(index >= 0 && index < (std::int64_t{1} << 56),
        "shapes: index: expected at least 0 and below 2^56, got ", index);
  Numbers numbers;
  fill_uniform(numbers.data(), numbers_each, {seed, noise_for::data_content, streams::shapes},
               index * numbers_each);
  return numbers;
}

void choose_colours(Shape& shape, const Numbers& u) {
  const Hue& hue = hues[static_cast<std::size_t>(shape.hue)];
  for (int c = 0; c < 3; ++c)
    shape.colour[c] = std::clamp(hue.colour[c] + between(-0.03f, 0.03f, u[draw_colour + c]), 0.0f, 1.0f);
  const float light = 0.21f * shape.colour[0] + 0.72f * shape.colour[1] + 0.07f * shape.colour[2];
  const bool dark = u[draw_dark] < (light - 0.35f) / 0.25f;  // light shapes on dark, dark ones on light
  const float level = dark ? between(0.06f, 0.22f, u[draw_level]) : between(0.80f, 0.96f, u[draw_level]);
  for (int c = 0; c < 3; ++c) {
    shape.ground[0][c] = level + between(-0.10f, 0.10f, u[draw_tints + c]);
    shape.ground[1][c] = level + between(-0.10f, 0.10f, u[draw_tints + 3 + c]) + (dark ? 0.14f : -0.14f);
  }
}

Shape shape_from(const Numbers& u, std::int64_t kind) {
  constexpr auto pi = static_cast<float>(exact::pi);
  Shape shape;
  shape.kind = kind;
  shape.hue = one_of(hues.size(), u[draw_hue]);
  shape.background = one_of(background_names().size(), u[draw_background]);
  shape.radius = static_cast<float>(0.23 * exact::power_of_two(u[draw_radius]));
  const float room = 0.5f - shape.radius * kinds[static_cast<std::size_t>(kind)].reach;
  shape.x = between(-1, 1, u[draw_x]) * room;
  shape.y = between(-1, 1, u[draw_y]) * room;
  shape.angle = between(-pi / 6, pi / 6, u[draw_angle]);
  choose_colours(shape, u);
  shape.ground_angle = 2 * pi * u[draw_ground_angle];
  shape.ground_cycles = between(3, 5, u[draw_cycles]);
  shape.ground_crossed = u[draw_crossed] < 0.5f;
  return shape;
}

template <class Table>
std::vector<std::string> names_of(const Table& table) {
  std::vector<std::string> names;
  for (const auto& entry : table) names.emplace_back(entry.name);
  return names;
}

class Shapes final : public Dataset {
 public:
  Shapes(const DataConfig& config, std::uint64_t seed, std::int64_t size, std::int64_t first)
      : width_(config.size[0]),
        height_(config.size[1]),
        flip_(config.flip),
        seed_(seed),
        size_(size),
        first_(first) {}

  std::int64_t size() const override { return size_; }
  const std::vector<std::string>& classes() const override { return shape_names(); }
  std::vector<std::int64_t> shape() const override { return {3, height_, width_}; }

  Example get(std::int64_t index, std::int64_t visit) const override {
    check(index >= 0 && (size_ == 0 || index < size_), "shapes: index: expected 0 to ", size_ - 1, ", got ",
          index);
    const Shape shape = shape_at(seed_, first_ + index);
    Example example{at::empty({3, height_, width_}, at::kByte), shape.kind};
    const std::span<std::uint8_t> bytes(example.picture.data_ptr<std::uint8_t>(),
                                        static_cast<std::size_t>(3 * height_ * width_));
    draw_shape(shape, width_, height_, bytes);
    if (flip_ && is_mirrored(seed_, first_ + index, visit)) mirror(bytes, width_);
    return example;
  }

  std::string name_of(std::int64_t index) const override {
    return "shapes item " + std::to_string(first_ + index);
  }

 private:
  std::int64_t width_, height_;
  bool flip_;
  std::uint64_t seed_;
  std::int64_t size_, first_;
};

}  // namespace

const std::vector<std::string>& shape_names() {
  static const std::vector<std::string> names = names_of(kinds);
  return names;
}

const std::vector<std::string>& hue_names() {
  static const std::vector<std::string> names = names_of(hues);
  return names;
}

std::array<float, 3> hue_colour(std::int64_t hue) {
  check(hue >= 0 && hue < std::ssize(hues), "hue_colour: hue: expected 0 to ", hues.size() - 1, ", got ",
        hue);
  const float* colour = hues[static_cast<std::size_t>(hue)].colour;
  return {colour[0], colour[1], colour[2]};
}

const std::vector<std::string>& background_names() {
  static const std::vector<std::string> names = {"plain", "graded", "textured"};
  return names;
}

Shape shape_at(std::uint64_t seed, std::int64_t index) {
  const Numbers numbers = numbers_of(seed, index);
  return shape_from(numbers, one_of(kinds.size(), numbers[draw_kind]));
}

Shape shape_at(std::uint64_t seed, std::int64_t index, std::int64_t kind) {
  check(kind >= 0 && kind < std::ssize(kinds), "shapes: kind: expected 0 to ", kinds.size() - 1, ", got ",
        kind);
  return shape_from(numbers_of(seed, index), kind);
}

std::shared_ptr<const Dataset> make_shapes(const DataConfig& config, std::uint64_t seed, std::int64_t size,
                                           std::int64_t first) {
  check_picture_size(config);
  check(size >= 0 && first >= 0, "shapes: size and first: expected at least 0, got ", size, " and ", first);
  return std::make_shared<Shapes>(config, seed, size, first);
}

}  // namespace pom::data
