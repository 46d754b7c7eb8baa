#include "pom/eval/clip_scores.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include "pom/base/error.h"
#include "pom/eval/feature_scores.h"
#include "pom/eval/one_thread.h"
#include "pom/eval/sample_bias.h"
#include "pom/eval/shapes_eval.h"
#include "pom/io/clip.h"

namespace pom::eval {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 7> clip_endings = {".mp4", ".webm", ".gif", ".mov",
                                                          ".mkv", ".avi",  ".y4m"};

bool ends_as_clip(const fs::path& path) {
  std::string ending = path.extension().string();
  std::ranges::transform(ending, ending.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
  return std::ranges::find(clip_endings, ending) != clip_endings.end();
}

// (3, H, W) in 0 … 1 to the means of side x side areas.
at::Tensor means_of(const at::Tensor& planes, std::int64_t side) {
  return at::adaptive_avg_pool2d(planes.unsqueeze(0), {side, side}).flatten();
}

double mean_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().mean().item<double>();
}

// A clip, frame by frame; no more than three of them are held.
class Measuring {
 public:
  void add(const io::Image& frame) {
    at::Tensor planes = stack_pictures(std::span(&frame, 1))[0].to(at::kDouble) / 255;
    check(last_.empty() || planes.sizes() == last_.back().sizes(),
          "eval: clips: expected frames of one size, got another");
    pooled_.push_back(means_of(planes, frame_side));
    small_.push_back(means_of(planes, stack_side));
    last_.push_back(std::move(planes));
    const std::size_t n = last_.size();
    if (n >= 2) changes_ += mean_difference(last_[n - 1], last_[n - 2]);
    if (n < 3) return;
    bends_ += mean_difference(last_[1], (last_[0] + last_[2]) / 2);
    last_.erase(last_.begin());
  }

  void finish(ClipMeasures& clip) const {
    clip.frames = std::ssize(pooled_);
    const auto pairs = static_cast<double>(clip.frames - 1);
    if (clip.frames >= 2) clip.flickering = 1 - changes_ / pairs;
    if (clip.frames >= 3) clip.smoothness = 1 - bends_ / (pairs - 1);
    clip.pooled = at::stack(pooled_);
    std::vector<at::Tensor> stacks;
    for (std::size_t at = 0; at + stack_frames <= small_.size(); at += stack_frames) {
      const auto first = small_.begin() + static_cast<std::ptrdiff_t>(at);
      stacks.push_back(at::cat(std::vector<at::Tensor>(first, first + stack_frames)));
    }
    clip.stacks = stacks.empty() ? at::empty({0, stack_frames * stack_side * stack_side * 3}, at::kDouble)
                                 : at::stack(stacks);
  }

 private:
  std::vector<at::Tensor> last_, pooled_, small_;
  double changes_ = 0, bends_ = 0;
};

constexpr std::int64_t clip_tenths = 10;

// All rows but those of every tenth clip from `out` on.
at::Tensor without(const ClipRows& all, std::int64_t out) {
  std::vector<at::Tensor> kept;
  std::int64_t row = 0;
  for (std::size_t i = 0; i < all.counts.size(); row += all.counts[i++])
    if (static_cast<std::int64_t>(i) % clip_tenths != out)
      kept.push_back(all.rows.narrow(0, row, all.counts[i]));
  return at::cat(kept);
}

}  // namespace

ClipMeasures measure_clip(const fs::path& path, const FrameSeen& seen) {
  const c10::NoGradGuard no_grad;
  io::ClipReader reader(path);
  Measuring measuring;
  ClipMeasures clip;
  for (io::Image frame; reader.next(frame);) {
    measuring.add(frame);
    if (seen) seen(frame);
    clip.width = frame.width, clip.height = frame.height;
  }
  clip.fps = reader.info().fps;
  check(clip.width > 0, "eval: clips: ", path.string(), ": expected frames, got none");
  measuring.finish(clip);
  return clip;
}

std::vector<fs::path> clips_at(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    check(fs::exists(path, error), "eval: clips: ", path.string(), ": no such file or folder");
    return {path};
  }
  if (io::frames_in(path).written > 0) return {path};
  std::vector<fs::path> clips;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error))
    if (ends_as_clip(entry.path())) clips.push_back(entry.path());
  check(!error, "eval: clips: ", path.string(), ": cannot list it: ", error.message());
  check(!clips.empty(), "eval: clips: ", path.string(), ": expected clips (.mp4, .gif, …) in it, got none");
  std::ranges::sort(clips);
  return clips;
}

ClipDistance clip_distance(const ClipRows& made, const at::Tensor& reference) {
  const c10::NoGradGuard no_grad;
  ClipDistance distance;
  const bool many = std::ssize(made.counts) >= 2 * clip_tenths;
  std::vector<double> found(many ? 1 + clip_tenths : 1);
  each_in_one_thread(std::ssize(found), std::ssize(found), [&](std::int64_t i) {
    found[static_cast<std::size_t>(i)] =
        frechet_of_samples(i == 0 ? made.rows : without(made, i - 1), reference);
  });
  distance.value = found[0];
  if (!many) return distance;
  distance.deviation = jackknife_deviation(std::span(found).subspan(1));
  return distance;
}

}  // namespace pom::eval
