#include "pom/eval/judge_network.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>

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

const at::Tensor& named(const JudgeWeights& weights, const std::string& name) {
  return weights.at(name);
}

// A convolution, batch norm and a rectifier.
at::Tensor convolve(const JudgeWeights& weights, const std::string& name, const at::Tensor& x,
                    std::int64_t stride, bool learning) {
  constexpr double momentum = 0.1, eps = 1e-5;
  const at::Tensor y = at::conv2d(x, named(weights, name + ".weight"), {}, stride, 1);
  return at::relu(at::batch_norm(y, named(weights, name + ".norm.weight"),
                                 named(weights, name + ".norm.bias"), named(weights, name + ".norm.mean"),
                                 named(weights, name + ".norm.variance"), learning, momentum, eps,
                                 /*cudnn_enabled=*/false));
}

at::Tensor linear(const JudgeWeights& weights, const std::string& name, const at::Tensor& x) {
  return at::linear(x, named(weights, name + ".weight"), named(weights, name + ".bias"));
}

}  // namespace

std::map<std::string, std::vector<std::int64_t>> judge_shapes(const Canvas& canvas) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  const auto convolution = [&](const std::string& name, std::int64_t in, std::int64_t out) {
    shapes[name + ".weight"] = {out, in, 3, 3};
    for (const char* part : {"weight", "bias", "mean", "variance"}) shapes[name + ".norm." + part] = {out};
  };
  const auto dense = [&](const std::string& name, std::int64_t in, std::int64_t out) {
    shapes[name + ".weight"] = {out, in};
    shapes[name + ".bias"] = {out};
  };
  const std::int64_t last = halvings(canvas) - 1;
  std::int64_t in = colours;
  for (std::int64_t i = 0; i <= last; ++i) {
    const std::int64_t out = std::max(narrowest, widest >> (last - i));
    convolution(stage(i, "halve"), std::exchange(in, out), out);
    if (i > 0) convolution(stage(i, "keep"), out, out);  // the first would cost more than all others
  }
  shapes["where.weight"] = {places, widest, 1, 1};
  dense("features", widest + places * grid * grid, judge_features);
  dense("kinds", judge_features, std::ssize(data::shape_names()));
  dense("hues", judge_features, std::ssize(data::hue_names()));
  dense("poses", judge_features, 3);
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
  const at::Tensor what = x.mean({2, 3}), where = at::conv2d(x, named(weights, "where.weight")).flatten(1);
  const at::Tensor both = at::cat({what, where}, 1);
  const at::Tensor features = at::gelu(linear(weights, "features", at::layer_norm(both, {both.size(1)})));
  return {linear(weights, "kinds", features), linear(weights, "hues", features),
          linear(weights, "poses", features), features};
}

}  // namespace pom::eval
