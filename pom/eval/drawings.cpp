#include "pom/eval/drawings.h"

#include <cmath>
#include <functional>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/data/shapes.h"

namespace pom::eval {
namespace {

Drawings draw_each(std::int64_t count, const Canvas& canvas,
                   const std::function<data::Shape(std::int64_t)>& shape) {
  check(count >= 0, "draw: count: expected at least 0, got ", count);
  const at::TensorOptions whole(at::kLong), real(at::kFloat), bytes(at::kByte);
  Drawings d{at::empty({count, 3, canvas.height, canvas.width}, bytes), at::empty({count}, whole),
             at::empty({count}, whole), at::empty({count, 3}, real)};
  const std::int64_t size = 3 * canvas.height * canvas.width;
  auto* pixels = d.pictures.data_ptr<std::uint8_t>();
  auto *kinds = d.kinds.data_ptr<std::int64_t>(), *hues = d.hues.data_ptr<std::int64_t>();
  float* poses = d.poses.data_ptr<float>();
  at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const data::Shape s = shape(i);
      data::draw_shape(s, canvas.width, canvas.height, {pixels + i * size, static_cast<std::size_t>(size)});
      kinds[i] = s.kind;
      hues[i] = s.hue;
      poses[3 * i] = s.x;
      poses[3 * i + 1] = s.y;
      poses[3 * i + 2] = std::log2(s.radius);
    }
  });
  return d;
}

}  // namespace

// Far from the small numbers that people give to runs.
std::uint64_t seed_of(DrawnFor purpose, std::uint64_t seed) {
  constexpr std::uint64_t apart = 0x6a75'6467'6500'0000;
  return (apart + (static_cast<std::uint64_t>(purpose) << 16)) ^ (seed << 32) ^ (seed >> 32);
}

Drawings draw(DrawnFor purpose, std::uint64_t seed, std::int64_t first, std::int64_t count,
              const Canvas& canvas) {
  const std::uint64_t key = seed_of(purpose, seed);
  return draw_each(count, canvas, [&](std::int64_t i) { return data::shape_at(key, first + i); });
}

Drawings draw(DrawnFor purpose, std::uint64_t seed, std::int64_t first, std::span<const std::int64_t> kinds,
              const Canvas& canvas) {
  const std::uint64_t key = seed_of(purpose, seed);
  return draw_each(std::ssize(kinds), canvas, [&](std::int64_t i) {
    return data::shape_at(key, first + i, kinds[static_cast<std::size_t>(i)]);
  });
}

}  // namespace pom::eval
