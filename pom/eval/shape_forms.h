// Private to the room: what fitting has to know of each shape, and the pose that a shape of some area and
// middle of mass has. Lengths in shorter sides of the picture, y upwards.
#pragma once

#include <cstdint>
#include <vector>

#include "pom/data/shapes.h"

namespace pom::eval {

struct Mass {
  double x = 0, y = 0, area = 0;
};

// Of a shape of radius 1: its area, and where its middle of mass is.
struct Form {
  double area, x, y;
  bool turns;   // looks different when it is turned
  int repeats;  // so often in a turn it looks as before
  int alike;    // likewise, but 1 where its middle of mass is its centre
};

// In the order of data::shape_names().
const std::vector<Form>& forms();

// White, of radius 0.3 in the middle.
data::Shape stencil(std::int64_t kind);

// A shape of this kind and angle whose area and middle of mass are those that were seen.
data::Shape fitted(std::int64_t kind, double angle, const Mass& mass);

}  // namespace pom::eval
