// Private to the room: the networks that read scenes, as functions of named tensors, and what they learn
// from. N pictures of H x W pixels; a grid of G x G' cells, about sixteen along a side. The first network
// says for each cell whether the centre of an object is in it, and of which hue; the second one looks at M
// cuts of pictures, each around a centre, and says of which kind.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/data/scenes.h"
#include "pom/eval/drawings.h"
#include "pom/eval/judge_layers.h"

namespace pom::eval {

inline constexpr std::int64_t grid_features = 64, cut_features = 32;
inline constexpr std::int64_t reader_features = grid_features + cut_features;

JudgeShapes reader_shapes(const Canvas& canvas);

struct ReaderGrid {
  std::int64_t width = 0, height = 0;
  double cell = 0;  // pixels along a side of a cell
};
ReaderGrid reader_grid(const Canvas& canvas);

struct GridOutput {
  at::Tensor hues;      // (N, 1 + hues, G, G'): scores; the first: nothing
  at::Tensor places;    // (N, 2, G, G'): of the centre in its cell, right and down, -1/2 to 1/2
  at::Tensor kinds;     // (N, kinds, G, G'): only while learning, which makes the features better
  at::Tensor features;  // (N, grid_features)
};
// x (N, 3, H, W) fp32 in [-1, 1].
GridOutput grid_forward(const JudgeWeights& weights, const at::Tensor& x, bool learning = false);

// A part of a picture that holds any object, whose middle is at a pixel.
struct Cut {
  std::int64_t picture = 0, hue = 0;
  std::int64_t right = 0, down = 0;  // pixels from the upper left corner
};
// (M, 4, C, C) of pictures as above: their colours, and how near each is to the cut's hue.
at::Tensor cut_out(const at::Tensor& pictures, const std::vector<Cut>& cuts);

struct CutOutput {
  at::Tensor kinds;     // (M, kinds): scores
  at::Tensor features;  // (M, cut_features)
};
CutOutput cut_forward(const JudgeWeights& weights, const at::Tensor& cuts, bool learning = false);

// Drawings of scenes, and what should be said of them. Cells beside a centre say what they like.
struct SceneDrawings {
  at::Tensor pictures;       // (N, 3, H, W) uint8
  at::Tensor hues, shown;    // (N, G, G') int64, the second: kinds; skipped_cell: not asked
  at::Tensor places, asked;  // (N, 2, G, G') and (N, 1, G, G') fp32
  std::vector<Cut> cuts;     // of all objects
  at::Tensor kinds;          // (M) int64
};
inline constexpr std::int64_t skipped_cell = -100;

// Scene `index` of what is drawn for a purpose; all splits in turn.
data::Scene reader_scene(DrawnFor purpose, std::uint64_t seed, std::int64_t index);
SceneDrawings draw_for_reader(DrawnFor purpose, std::uint64_t seed, std::int64_t first, std::int64_t count,
                              const Canvas& canvas);

}  // namespace pom::eval
