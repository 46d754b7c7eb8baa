// Drawings of shapes, without end: picture i of seed s is always the same, at any resolution the same
// drawing.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pom/data/dataset.h"
#include "pom/io/image.h"

namespace pom::data {

const std::vector<std::string>& shape_names();  // the classes
const std::vector<std::string>& hue_names();
std::array<float, 3> hue_colour(std::int64_t hue);   // RGB, 0 to 1; drawings are within 0.03 of it
const std::vector<std::string>& background_names();  // plain, graded, textured …

// Everything about one drawing. Lengths in sides of the picture, y upwards, angles in radians.
struct Shape {
  std::int64_t kind = 0;        // of shape_names()
  std::int64_t hue = 0;         // of hue_names()
  std::int64_t background = 0;  // of background_names()
  float x = 0, y = 0;           // centre, from the middle of the picture
  float radius = 0.3f;
  float angle = 0;          // against the clock
  float colour[3] = {};     // 0 to 1, near its hue
  float ground[2][3] = {};  // the tints of the background
  float ground_angle = 0, ground_cycles = 0;
  bool ground_crossed = false;  // waves both ways
};

// The drawing that (seed, index) stands for. A function of the two alone.
Shape shape_at(std::uint64_t seed, std::int64_t index);
// The same with a given class.
Shape shape_at(std::uint64_t seed, std::int64_t index, std::int64_t kind);

// Antialiased: every pixel is covered by as much as the shape covers of it. out: planar (3, height, width).
void draw_shape(const Shape& shape, std::int64_t width, std::int64_t height, std::span<std::uint8_t> out);

// The share of the area of `rear` that `front` covers, by the points of a grid.
float covered_share(const Shape& front, const Shape& rear);

// Examples 0, 1, 2, … of a seed. Where `first` is given, item i is drawing first + i.
std::shared_ptr<const Dataset> make_shapes(const DataConfig& config, std::uint64_t seed,
                                           std::int64_t size = 0, std::int64_t first = 0);

}  // namespace pom::data
