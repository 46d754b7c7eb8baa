// Private to the room: the parts of the judge of scenes. A picture, its ground, regions of one hue, and
// shapes that are fitted to how much of each pixel they cover. P pixels of a picture; places in pixels, or in
// shorter sides from the middle with y upwards where a data::Shape says so.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/data/shape_cover.h"

namespace pom::eval::scenes {

using Colour = std::array<float, 3>;  // RGB, 0 to 1
using Plane = std::vector<float>;     // P

float distance(const Colour& a, const Colour& b);

struct Picture {
  std::int64_t width = 0, height = 0;
  std::vector<Colour> pixels;  // P

  std::int64_t unit() const { return std::min(width, height); }
  std::int64_t size() const { return width * height; }
};

// (3, H, W) uint8.
Picture open_picture(const at::Tensor& picture);

// ---- scene_ground.cpp

// What each pixel shows where nothing is: a slope of colour. Of textures, their mean.
std::vector<Colour> find_ground(const Picture& picture);

// ---- scene_regions.cpp

// Pixels of one hue that touch each other.
struct Region {
  std::int64_t hue = 0;
  Colour colour = {};                // the middle one
  std::vector<std::int64_t> pixels;  // ascending
};

// The fewest pixels of a region that is looked at.
std::int64_t least_region(const Picture& picture);

// What is farther than this from what is there is something else.
inline constexpr float apart = 0.18f;

// Which pixels stand out from a ground; and which ones are not explained by what was drawn: neither as it is
// drawn there, nor as a mixture of what is drawn around them, which soft edges are.
std::vector<bool> standing_out(const Picture& picture, const std::vector<Colour>& ground);
std::vector<bool> unexplained(const Picture& picture, const std::vector<Colour>& drawn);

// Of the pixels that are asked for; the largest first. Left out are specks, and what is as thin as the edge
// between two other colours, if `thin` does not ask for it.
std::vector<Region> find_regions(const Picture& picture, const std::vector<bool>& asked, bool thin);

// ---- scene_fit.cpp

// What a shape should cover: for pixels of a box how much, and how much that counts.
struct Target {
  data::PixelBox box;
  Plane cover, weight;  // of the box
};

struct Fit {
  data::Shape shape;
  double error = 1e9;  // the sum of weighted squares
};

// The best of each kind, the nearest first; those that are far from it are left out. `most` of them. A
// thorough search has more starts: for what a quick one did not find.
std::vector<Fit> fit_kinds(const Picture& picture, const Target& target, std::size_t most, bool thorough);
inline constexpr std::size_t most_fits = 4;  // of an object, to choose from when all are known
// The largest misfit with which a quick search is done.
inline constexpr double found_quickly = 0.01;
// The same kind, from where it is.
Fit refine(const Picture& picture, const Target& target, const data::Shape& shape, int steps);

// A box around a shape, `margin` pixels larger, within the picture.
data::PixelBox box_around(const Picture& picture, const data::Shape& shape, std::int64_t margin);
data::PixelBox box_around(const Picture& picture, const std::vector<std::int64_t>& pixels,
                          std::int64_t margin);
data::PixelBox united(const data::PixelBox& a, const data::PixelBox& b);

// ---- scene_layers.cpp

// How much of a line of colours, from `without` on, a pixel shows, and how much that counts: less where it is
// off the line, or where the line is shorter than the reference (its square).
struct Unmixed {
  float share = 0, weight = 0;
};
Unmixed unmix(const Colour& pixel, const Colour& without, const Colour& line, float reference);

// An object that was found, and what else it may be.
struct Layer {
  std::int64_t hue = 0;
  Colour colour = {};
  Region region;
  std::vector<Fit> fits;  // the nearest first
  Plane cover;            // P, of the first
  double misfit = 0;      // its error as a share of what is seen of it
  double visible = 1;     // the share of its area that nothing hides

  const data::Shape& shape() const { return fits.front().shape; }
};

// ---- scene_objects.cpp

// What the regions are: a layer of each, or of several where it was cut into parts.
std::vector<Layer> find_layers(const Picture& picture, const std::vector<Colour>& behind,
                               const std::vector<Region>& regions);

// ---- scene_layers.cpp

// Layers over a ground, in an order that is found from what shows where they overlap.
class Composition {
 public:
  Composition(const Picture& picture, std::vector<Colour> ground)
      : picture_(picture), ground_(std::move(ground)) {}

  void add(Layer layer);
  // Each layer fitted again among the others, `rounds` times; those without which as much is explained are
  // left out.
  void settle(int rounds);
  // What the layers look like together, but for one of them where it is given.
  std::vector<Colour> drawn(std::optional<std::size_t> without = {}) const;

  const std::vector<Layer>& layers() const { return layers_; }  // front first
  double overlap(std::size_t front, std::size_t back) const;    // the share of the back one's area

 private:
  void sort();
  bool in_front(const Layer& a, const Layer& b) const;
  Target target_of(std::size_t layer) const;
  void fit_again(std::size_t layer);
  void measure(std::size_t layer);
  bool look_again();
  bool leave_out();

  const Picture& picture_;
  std::vector<Colour> ground_;
  std::vector<Layer> layers_;
};

}  // namespace pom::eval::scenes
