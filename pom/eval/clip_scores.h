// What can be said of clips without others' networks: how much they flicker, how evenly they move, and how
// far their frames and short stacks of frames are from those of a reference. T frames, S stacks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/eval/feature_network.h"
#include "pom/io/image.h"

namespace pom::eval {

inline constexpr std::int64_t stack_frames = 8, stack_side = 4, frame_side = 8;

struct ClipMeasures {
  std::int64_t frames = 0, width = 0, height = 0;
  double fps = 0;
  // VBench's: 1 less the mean absolute difference of neighbouring frames, of 255. Needs two frames.
  std::optional<double> flickering;
  // Ours, and not that of VBench, which asks a network to draw every second frame: 1 less the mean absolute
  // difference, of 255, of a frame from the mean of the two beside it. Needs three.
  std::optional<double> smoothness;
  at::Tensor pooled;  // (T, 192) fp64: a frame as means over 8 x 8 areas, 0 … 1
  at::Tensor stacks;  // (S, 384) fp64: 8 frames that follow each other, each as means over 4 x 4 areas
};

// Hears of each frame, in order.
using FrameSeen = std::function<void(const io::Image& frame)>;
// Of a file, or of a folder of frames (io::ClipReader).
ClipMeasures measure_clip(const std::filesystem::path& path, const FrameSeen& seen = {});

// The clips in a folder (.mp4, .webm, .gif, .mov, .mkv, .avi, .y4m), in the order of their names; or the one
// that the path is. None is an error.
std::vector<std::filesystem::path> clips_at(const std::filesystem::path& path);

// Rows of many clips and the distance to those of others, with its deviation over clips: whole tenths of the
// clips are left out, for frames of one clip are alike.
struct ClipRows {
  at::Tensor rows;                   // (N, F)
  std::vector<std::int64_t> counts;  // of each clip
};
struct ClipDistance {
  double value = 0;
  std::optional<double> deviation;  // of at least 20 clips
};
ClipDistance clip_distance(const ClipRows& made, const at::Tensor& reference);

}  // namespace pom::eval
