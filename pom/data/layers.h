// One ground and shapes over it, drawn again and again, as the frames of a clip are. W x H pixels; the
// renderer is that of draw_shape.cpp, and so are the pixels.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "pom/data/shapes.h"

namespace pom::data {

class Layers {
 public:
  // Of `ground` only what describes the background is looked at.
  Layers(const Shape& ground, std::int64_t width, std::int64_t height);
  ~Layers();
  Layers(Layers&&) noexcept;

  // Nothing but the ground.
  void clear();
  // A shape over what is there. What leaves the picture on one side comes in on the other.
  void add(const Shape& shape);
  // As bytes: channel c of the picture begins at out + c * stride.
  void put(std::uint8_t* out, std::int64_t stride) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pom::data
