#include "pom/eval/scene_reader_network.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/replication_pad2d.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/zeros.h>

#include "pom/base/noise.h"

namespace pom::eval {
namespace {

constexpr std::int64_t cells = 16, at_grid = 48, deep = 96, narrow = 16;
constexpr std::int64_t cut_side = 32;  // pixels of a cut once it is scaled

// Until the shorter side has about as many cells.
std::int64_t reader_halvings(const Canvas& canvas) {
  const auto side = static_cast<double>(std::min(canvas.width, canvas.height));
  return std::max<std::int64_t>(1, std::llround(std::log2(side / static_cast<double>(cells))));
}

std::string halving(std::int64_t i) {
  return "down." + std::to_string(i);
}

}  // namespace

JudgeShapes reader_shapes(const Canvas& canvas) {
  JudgeShapes shapes;
  const std::int64_t halvings = reader_halvings(canvas);
  std::int64_t in = 3;
  for (std::int64_t i = 0; i < halvings; ++i) {
    const std::int64_t out = i + 1 == halvings ? at_grid : narrow;
    add_convolution(shapes, halving(i), std::exchange(in, out), out);
  }
  add_convolution(shapes, "grid", at_grid, at_grid);
  add_convolution(shapes, "deep.0", at_grid, deep);  // halves the grid: what is seen at a cell is larger
  add_convolution(shapes, "deep.1", deep, deep);
  add_convolution(shapes, "deep.2", deep, deep);
  shapes["back.weight"] = {at_grid, deep, 1, 1};
  add_convolution(shapes, "last", at_grid, grid_features);
  const std::int64_t says = 1 + std::ssize(data::hue_names()) + 2 + std::ssize(data::shape_names());
  shapes["says.weight"] = {says, grid_features, 1, 1};
  shapes["says.bias"] = {says};
  add_convolution(shapes, "cut.0", 4, 16);
  add_convolution(shapes, "cut.1", 16, 32);
  add_convolution(shapes, "cut.2", 32, 32);
  add_convolution(shapes, "cut.3", 32, 64);
  add_convolution(shapes, "cut.4", 64, 64);
  add_dense(shapes, "cut.features", 64 * 4 * 4, cut_features);
  add_dense(shapes, "cut.kinds", cut_features, std::ssize(data::shape_names()));
  return shapes;
}

ReaderGrid reader_grid(const Canvas& canvas) {
  const std::int64_t halvings = reader_halvings(canvas);
  ReaderGrid grid{canvas.width, canvas.height, std::exp2(static_cast<double>(halvings))};
  for (std::int64_t i = 0; i < halvings; ++i) {
    grid.width = (grid.width + 1) / 2;
    grid.height = (grid.height + 1) / 2;
  }
  return grid;
}

GridOutput grid_forward(const JudgeWeights& weights, const at::Tensor& pictures, bool learning) {
  at::Tensor x = pictures;  // (N, C, H', W') from here on
  for (std::int64_t i = 0; weights.contains(halving(i) + ".weight"); ++i)
    x = convolve(weights, halving(i), x, 2, learning);
  x = convolve(weights, "grid", x, 1, learning);
  at::Tensor wide = convolve(weights, "deep.0", x, 2, learning);
  wide = convolve(weights, "deep.1", wide, 1, learning);
  wide = convolve(weights, "deep.2", wide, 1, learning);
  wide = at::upsample_nearest2d(at::conv2d(wide, weights.at("back.weight")), x.sizes().slice(2));
  x = convolve(weights, "last", x + wide, 1, learning);
  const at::Tensor says = at::conv2d(x, weights.at("says.weight"), weights.at("says.bias"));
  const std::int64_t hues = 1 + std::ssize(data::hue_names()), kinds = std::ssize(data::shape_names());
  return {says.narrow(1, 0, hues), says.narrow(1, hues, 2), says.narrow(1, hues + 2, kinds), x.mean({2, 3})};
}

at::Tensor cut_out(const at::Tensor& pictures, const std::vector<Cut>& cuts) {
  const std::int64_t unit = std::min(pictures.size(2), pictures.size(3)), side = unit / 2, reach = side / 2;
  const at::Tensor padded = at::replication_pad2d(pictures, {reach, reach, reach, reach});
  std::vector<at::Tensor> parts;
  std::vector<float> colours;  // (M, 3), in [-1, 1]
  for (const Cut& cut : cuts) {
    parts.push_back(padded[cut.picture]
                        .narrow(1, std::clamp<std::int64_t>(cut.down, 0, pictures.size(2)), side)
                        .narrow(2, std::clamp<std::int64_t>(cut.right, 0, pictures.size(3)), side));
    for (const float c : data::hue_colour(cut.hue)) colours.push_back(2 * c - 1);
  }
  const at::Tensor stacked = at::stack(parts);
  const at::Tensor hues = at::tensor(colours, stacked.options()).view({std::ssize(cuts), 3, 1, 1});
  constexpr double near = 0.4;
  const at::Tensor likeness = at::exp((stacked - hues).square().sum(1, true) * (-0.5 / (near * near)));
  const at::Tensor all = at::cat({stacked, likeness * 2 - 1}, 1);
  if (side == cut_side) return all;
  return at::upsample_bilinear2d(all, {cut_side, cut_side}, /*align_corners=*/false);
}

CutOutput cut_forward(const JudgeWeights& weights, const at::Tensor& cuts, bool learning) {
  at::Tensor x = convolve(weights, "cut.0", cuts, 2, learning);
  x = convolve(weights, "cut.1", x, 2, learning);
  x = convolve(weights, "cut.2", x, 1, learning);
  x = convolve(weights, "cut.3", x, 2, learning);
  x = convolve(weights, "cut.4", x, 1, learning);
  const at::Tensor features = at::gelu(dense(weights, "cut.features", x.flatten(1)));
  return {dense(weights, "cut.kinds", features), features};
}

data::Scene reader_scene(DrawnFor purpose, std::uint64_t seed, std::int64_t index) {
  // Wordings say nothing of pictures.
  static const std::array<std::string, 4> splits = {"training", "new_pairs", "new_relations", "new_all"};
  data::SceneOptions options;
  options.split = splits[static_cast<std::size_t>(index % std::ssize(splits))];
  return data::scene_at(options, seed_of(purpose, seed), index);
}

namespace {

// Where an object is, in pixels from the upper left corner.
struct PixelPlace {
  double right, down;
};

PixelPlace pixel_place(const data::SceneObject& object, const Canvas& canvas) {
  const auto unit = static_cast<double>(std::min(canvas.width, canvas.height));
  return {static_cast<double>(object.x) * unit + static_cast<double>(canvas.width) / 2,
          static_cast<double>(canvas.height) / 2 - static_cast<double>(object.y) * unit};
}

// What the cells of one drawing should say.
void mark_cells(const data::Scene& scene, const Canvas& canvas, const SceneDrawings& all,
                std::int64_t index) {
  const ReaderGrid grid = reader_grid(canvas);
  const std::int64_t size = grid.width * grid.height;
  auto* hues = all.hues.data_ptr<std::int64_t>() + index * size;
  auto* shown = all.shown.data_ptr<std::int64_t>() + index * size;
  float* places = all.places.data_ptr<float>() + 2 * index * size;
  float* asked = all.asked.data_ptr<float>() + index * size;
  std::vector<std::int64_t> centres;
  for (const data::SceneObject& object : scene.objects) {
    const PixelPlace place = pixel_place(object, canvas);
    const double right = place.right / grid.cell, down = place.down / grid.cell;
    const auto u = std::clamp<std::int64_t>(static_cast<std::int64_t>(right), 0, grid.width - 1),
               v = std::clamp<std::int64_t>(static_cast<std::int64_t>(down), 0, grid.height - 1);
    for (std::int64_t y = std::max<std::int64_t>(v - 1, 0); y <= std::min(v + 1, grid.height - 1); ++y)
      for (std::int64_t x = std::max<std::int64_t>(u - 1, 0); x <= std::min(u + 1, grid.width - 1); ++x)
        hues[y * grid.width + x] = skipped_cell;
    const std::int64_t cell = centres.emplace_back(v * grid.width + u);
    shown[cell] = object.kind;
    places[cell] = static_cast<float>(right - static_cast<double>(u) - 0.5);
    places[size + cell] = static_cast<float>(down - static_cast<double>(v) - 0.5);
    asked[cell] = 1;
  }
  for (std::size_t i = 0; i < centres.size(); ++i) hues[centres[i]] = 1 + scene.objects[i].hue;
}

// The first network does not find centres exactly, so the second one learns from cuts that are a little off.
void add_cuts(const data::Scene& scene, const Canvas& canvas, std::int64_t picture, const NoiseKey& key,
              SceneDrawings& all, std::vector<std::int64_t>& kinds) {
  for (const data::SceneObject& object : scene.objects) {
    float chance[2];
    fill_uniform(chance, 2, key, 2 * std::ssize(all.cuts));
    const PixelPlace place = pixel_place(object, canvas);
    const double off = static_cast<double>(std::min(canvas.width, canvas.height)) / 32;  // either way
    const auto moved = [&](double at, float u) {
      return std::llround(at + off * (2 * static_cast<double>(u) - 1));
    };
    all.cuts.push_back({picture, object.hue, moved(place.right, chance[0]), moved(place.down, chance[1])});
    kinds.push_back(object.kind);
  }
}

}  // namespace

SceneDrawings draw_for_reader(DrawnFor purpose, std::uint64_t seed, std::int64_t first, std::int64_t count,
                              const Canvas& canvas) {
  const ReaderGrid grid = reader_grid(canvas);
  const at::TensorOptions whole(at::kLong), real(at::kFloat), bytes(at::kByte);
  SceneDrawings all{at::empty({count, 3, canvas.height, canvas.width}, bytes),
                    at::zeros({count, grid.height, grid.width}, whole),
                    at::full({count, grid.height, grid.width}, skipped_cell, whole),
                    at::zeros({count, 2, grid.height, grid.width}, real),
                    at::zeros({count, 1, grid.height, grid.width}, real),
                    {},
                    {}};
  const std::int64_t size = 3 * canvas.height * canvas.width;
  auto* pixels = all.pictures.data_ptr<std::uint8_t>();
  const data::ClipFormat format{.width = canvas.width, .height = canvas.height, .frames = 1};
  std::vector<data::Scene> scenes(static_cast<std::size_t>(count));
  at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      data::Scene& scene = scenes[static_cast<std::size_t>(i)];
      scene = reader_scene(purpose, seed, first + i);
      data::draw_scene(scene, format, {pixels + i * size, static_cast<std::size_t>(size)});
      mark_cells(scene, canvas, all, i);
    }
  });
  std::vector<std::int64_t> kinds;
  const NoiseKey key{seed_of(purpose, seed), noise_for::train_time,
                     static_cast<std::uint32_t>(first / count)};
  for (std::size_t i = 0; i < scenes.size(); ++i)
    add_cuts(scenes[i], canvas, static_cast<std::int64_t>(i), key, all, kinds);
  all.kinds = at::tensor(kinds, whole);
  return all;
}

}  // namespace pom::eval
