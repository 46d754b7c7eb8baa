// What a model for clips is asked, and what the judge of sprites says of its answers: captions of clips with
// one sprite, and of a long answer only the parts that are judged. N clips, F frames of H x W pixels.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pom/data/sprites.h"
#include "pom/eval/sprite_judge.h"
#include "pom/io/image.h"

namespace pom::eval {

// training, new_wordings, new_pairs, new_both: from what a model has seen to what it has not.
const std::vector<std::string>& sprite_splits();

struct SpriteQuestion {
  std::int64_t split = 0;   // of sprite_splits()
  std::int64_t number = 0;  // within its split
  data::SpriteClip scene;   // of one sprite
  std::string caption;
};

// `count` of each of these splits. A question is the same whichever others are asked, and no training of that
// seed has its scene.
std::vector<SpriteQuestion> sprite_questions(const std::vector<std::string>& splits, std::uint64_t seed,
                                             std::int64_t count);

// Which frames of a long clip are judged: of its first `length` times `frames` frames the last `frames`.
struct SpriteParts {
  std::int64_t frames = 0;
  std::vector<std::int64_t> lengths;  // growing

  std::int64_t first(std::size_t i) const { return (lengths[i] - 1) * frames; }
  std::int64_t last() const { return lengths.back() * frames; }  // frames of a clip in all
};

// A frame of a clip (3, F, H, W), from 8-bit RGB.
void put_frame(const at::Tensor& clip, std::int64_t frame, const io::Image& image);

// The parts of clips that are made block by block.
class PartKeeper {
 public:
  PartKeeper(const SpriteParts& parts, std::int64_t clips, std::int64_t height, std::int64_t width);
  // Frames `first`, … of one of the clips, 8-bit RGB.
  void take(std::int64_t clip, std::int64_t first, std::span<const io::Image> frames);
  const at::Tensor& part(std::size_t length) const { return kept_[length]; }  // (N, 3, F, H, W)

 private:
  SpriteParts parts_;
  std::vector<at::Tensor> kept_;
};

// The same parts of the questions' own scenes, drawn.
at::Tensor draw_part(std::span<const SpriteQuestion> questions, const data::ClipFormat& format,
                     std::int64_t first);

// One part of each question's clip, on all threads. `on_some` hears how many are done, and may throw.
std::vector<SpriteAgreement> judge_part(std::span<const SpriteQuestion> questions, const at::Tensor& clips,
                                        double fps, const std::function<void(std::int64_t)>& on_some = {});

}  // namespace pom::eval
