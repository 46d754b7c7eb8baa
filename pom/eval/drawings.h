// Drawings with everything that is true of them, for the judge to learn from and for pictures to be compared
// with. N drawings of H x W pixels.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace pom::eval {

struct Drawings {
  at::Tensor pictures;  // (N, 3, H, W) uint8
  at::Tensor kinds;     // (N) int64, of data::shape_names()
  at::Tensor hues;      // (N) int64, of data::hue_names()
  at::Tensor poses;     // (N, 3) fp32: x, y in sides of the picture, log2 of the radius
};

struct Canvas {
  std::int64_t width = 64, height = 64;

  friend bool operator==(const Canvas&, const Canvas&) = default;
};

// What drawings are for. Each has numbers of its own, which no training of a model uses, so that nothing here
// has been seen by a model, or by the judge before it judges.
enum class DrawnFor : std::uint32_t { learning, holding_out, reference, yardstick, ceiling };
std::uint64_t seed_of(DrawnFor purpose, std::uint64_t seed);  // that of its numbers

// Drawings first, first + 1, … of a seed; of all kinds as they come,
Drawings draw(DrawnFor purpose, std::uint64_t seed, std::int64_t first, std::int64_t count,
              const Canvas& canvas);
// or one of each kind given.
Drawings draw(DrawnFor purpose, std::uint64_t seed, std::int64_t first, std::span<const std::int64_t> kinds,
              const Canvas& canvas);

}  // namespace pom::eval
