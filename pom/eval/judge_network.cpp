#include "pom/eval/judge_network.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>

#include "pom/data/shapes.h"

namespace pom::eval {
namespace {

constexpr std::int64_t grid = 4, widest = 128, narrowest = 16, places = 8, colours = 3;

// Until the picture is as small as the grid: whatever sees less than a whole shape takes a large one for
// another.
std::int64_t halvings(const Canvas& canvas) {
  const std::int64_t side = std::max(canvas.width, canvas.height);
  std::int64_t count = 2;
  while (count < 6 && (side >> count) > grid) ++count;
  return count;
}

std::string stage(std::int64_t i, const char* part) {
  return "stages." + std::to_string(i) + "." + part;
}

}  // namespace

JudgeShapes judge_shapes(const Canvas& canvas) {
  JudgeShapes shapes;
  const std::int64_t last = halvings(canvas) - 1;
  std::int64_t in = colours;
  for (std::int64_t i = 0; i <= last; ++i) {
    const std::int64_t out = std::max(narrowest, widest >> (last - i));
    add_convolution(shapes, stage(i, "halve"), std::exchange(in, out), out);
    if (i > 0)
      add_convolution(shapes, stage(i, "keep"), out, out);  // the first would cost more than all others
  }
  shapes["where.weight"] = {places, widest, 1, 1};
  add_dense(shapes, "features", widest + places * grid * grid, judge_features);
  add_dense(shapes, "kinds", judge_features, std::ssize(data::shape_names()));
  add_dense(shapes, "hues", judge_features, std::ssize(data::hue_names()));
  add_dense(shapes, "poses", judge_features, 3);
  return shapes;
}

JudgeOutput judge_forward(const JudgeWeights& weights, const at::Tensor& pictures, bool learning) {
  at::Tensor x = pictures;  // (N, C, H', W') from here on
  for (std::int64_t i = 0; weights.contains(stage(i, "halve.weight")); ++i) {
    x = convolve(weights, stage(i, "halve"), x, 2, learning);
    if (i > 0) x = convolve(weights, stage(i, "keep"), x, 1, learning);
  }
  x = at::adaptive_avg_pool2d(x, {grid, grid});
  // What there is, wherever; and a little of where. Both in full would be too many inputs to learn quickly.
  const at::Tensor what = x.mean({2, 3}), where = at::conv2d(x, weights.at("where.weight")).flatten(1);
  const at::Tensor both = at::cat({what, where}, 1);
  const at::Tensor features = at::gelu(dense(weights, "features", at::layer_norm(both, {both.size(1)})));
  return {dense(weights, "kinds", features), dense(weights, "hues", features),
          dense(weights, "poses", features), features};
}

}  // namespace pom::eval
