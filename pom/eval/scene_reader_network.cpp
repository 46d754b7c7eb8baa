#include "pom/eval/scene_reader_network.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/zeros.h>

namespace pom::eval {
namespace {

constexpr std::int64_t cells = 16, at_grid = 48, deep = 96, narrow = 16;

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
  add_convolution(shapes, "last", at_grid, reader_features);
  const std::int64_t says = 1 + std::ssize(data::hue_names()) + std::ssize(data::shape_names()) + 2;
  shapes["says.weight"] = {says, reader_features, 1, 1};
  shapes["says.bias"] = {says};
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

ReaderOutput reader_forward(const JudgeWeights& weights, const at::Tensor& pictures, bool learning) {
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
  return {says.narrow(1, 0, hues), says.narrow(1, hues, kinds), says.narrow(1, hues + kinds, 2),
          x.mean({2, 3})};
}

data::Scene reader_scene(DrawnFor purpose, std::uint64_t seed, std::int64_t index) {
  // Wordings say nothing of pictures.
  static const std::array<std::string, 4> splits = {"training", "new_pairs", "new_relations", "new_all"};
  data::SceneOptions options;
  options.split = splits[static_cast<std::size_t>(index % std::ssize(splits))];
  return data::scene_at(options, seed_of(purpose, seed), index);
}

namespace {

// What the cells of one drawing should say.
void mark_cells(const data::Scene& scene, const Canvas& canvas, const SceneDrawings& all,
                std::int64_t index) {
  const ReaderGrid grid = reader_grid(canvas);
  const auto unit = static_cast<double>(std::min(canvas.width, canvas.height));
  const std::int64_t size = grid.width * grid.height;
  auto* hues = all.hues.data_ptr<std::int64_t>() + index * size;
  auto* kinds = all.kinds.data_ptr<std::int64_t>() + index * size;
  float* places = all.places.data_ptr<float>() + 2 * index * size;
  float* asked = all.asked.data_ptr<float>() + index * size;
  const auto cell_of = [&](double place, std::int64_t count) {
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::floor(place)), 0, count - 1);
  };
  std::vector<std::int64_t> centres;
  for (const data::SceneObject& object : scene.objects) {
    const double right = (static_cast<double>(object.x) * unit + static_cast<double>(canvas.width) / 2) /
                         grid.cell,
                 down = (static_cast<double>(canvas.height) / 2 - static_cast<double>(object.y) * unit) /
                        grid.cell;
    const std::int64_t u = cell_of(right, grid.width), v = cell_of(down, grid.height);
    for (std::int64_t y = std::max<std::int64_t>(v - 1, 0); y <= std::min(v + 1, grid.height - 1); ++y)
      for (std::int64_t x = std::max<std::int64_t>(u - 1, 0); x <= std::min(u + 1, grid.width - 1); ++x)
        hues[y * grid.width + x] = skipped_cell;
    const std::int64_t cell = centres.emplace_back(v * grid.width + u);
    kinds[cell] = object.kind;
    places[cell] = static_cast<float>(right - static_cast<double>(u) - 0.5);
    places[size + cell] = static_cast<float>(down - static_cast<double>(v) - 0.5);
    asked[cell] = 1;
  }
  for (std::size_t i = 0; i < centres.size(); ++i) hues[centres[i]] = 1 + scene.objects[i].hue;
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
                    at::zeros({count, 1, grid.height, grid.width}, real)};
  const std::int64_t size = 3 * canvas.height * canvas.width;
  auto* pixels = all.pictures.data_ptr<std::uint8_t>();
  const data::ClipFormat format{.width = canvas.width, .height = canvas.height, .frames = 1};
  at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const data::Scene scene = reader_scene(purpose, seed, first + i);
      data::draw_scene(scene, format, {pixels + i * size, static_cast<std::size_t>(size)});
      mark_cells(scene, canvas, all, i);
    }
  });
  return all;
}

}  // namespace pom::eval
