// Private to the room: the network that reads scenes, as functions of named tensors, and what it learns from.
// N pictures of H x W pixels; a grid of G x G' cells, about sixteen along a side; each cell says whether the
// centre of an object is in it, and of which one.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "pom/data/scenes.h"
#include "pom/eval/drawings.h"
#include "pom/eval/judge_layers.h"

namespace pom::eval {

inline constexpr std::int64_t reader_features = 64;

JudgeShapes reader_shapes(const Canvas& canvas);

struct ReaderGrid {
  std::int64_t width = 0, height = 0;
  double cell = 0;  // pixels along a side of a cell
};
ReaderGrid reader_grid(const Canvas& canvas);

struct ReaderOutput {
  at::Tensor hues;      // (N, 1 + hues, G, G'): scores; the first: nothing
  at::Tensor kinds;     // (N, kinds, G, G')
  at::Tensor places;    // (N, 2, G, G'): of the centre in its cell, right and down, -1/2 to 1/2
  at::Tensor features;  // (N, F)
};

// x (N, 3, H, W) fp32 in [-1, 1].
ReaderOutput reader_forward(const JudgeWeights& weights, const at::Tensor& x, bool learning = false);

// Drawings of scenes, and what each cell should say of them. Cells beside a centre say what they like.
struct SceneDrawings {
  at::Tensor pictures;       // (N, 3, H, W) uint8
  at::Tensor hues, kinds;    // (N, G, G') int64; skipped_cell: not asked
  at::Tensor places, asked;  // (N, 2, G, G') and (N, 1, G, G') fp32
};
inline constexpr std::int64_t skipped_cell = -100;

// Scene `index` of what is drawn for a purpose; all splits in turn.
data::Scene reader_scene(DrawnFor purpose, std::uint64_t seed, std::int64_t index);
SceneDrawings draw_for_reader(DrawnFor purpose, std::uint64_t seed, std::int64_t first, std::int64_t count,
                              const Canvas& canvas);

}  // namespace pom::eval
