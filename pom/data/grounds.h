// Private to the room: what sprites and scenes are drawn over, one of ground_names() with a tint and a
// pattern of its own.
#pragma once

#include <cstdint>
#include <span>

#include "pom/data/shapes.h"

namespace pom::data {

// One whose name is none of these hues', from a uniform number.
std::int64_t choose_ground(std::span<const std::int64_t> hues, float u);

// So many uniform numbers paint a ground.
inline constexpr int ground_numbers = 9;
void paint_ground(Shape& background, std::int64_t ground, const float* u);

}  // namespace pom::data
