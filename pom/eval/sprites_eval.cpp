#include "pom/eval/sprites_eval.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "pom/base/error.h"

namespace pom::eval {
namespace {

// Far from the small numbers that people give to trainings.
std::uint64_t scenes_of(std::uint64_t seed) {
  return 0x7370'7269'7465'0000 ^ (seed << 32) ^ (seed >> 32);
}

std::int64_t split_named(const std::string& name) {
  const std::vector<std::string>& all = sprite_splits();
  const auto found = std::ranges::find(all, name);
  check(found != all.end(), "eval: splits: expected training, new_wordings, new_pairs or new_both, got \"",
        name, "\"");
  return found - all.begin();
}

}  // namespace

const std::vector<std::string>& sprite_splits() {
  static const std::vector<std::string> names = {"training", "new_wordings", "new_pairs", "new_both"};
  return names;
}

std::vector<SpriteQuestion> sprite_questions(const std::vector<std::string>& splits, std::uint64_t seed,
                                             std::int64_t count) {
  std::vector<SpriteQuestion> questions;
  for (const std::string& name : splits) {
    const std::int64_t split = split_named(name);
    data::SpriteOptions options;
    options.split = name;
    options.two = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      data::SpriteClip scene = data::sprite_clip_at(options, scenes_of(seed), i);
      std::string caption = data::caption_of(scene);
      questions.push_back({split, i, std::move(scene), std::move(caption)});
    }
  }
  return questions;
}

void put_frame(const at::Tensor& clip, std::int64_t frame, const io::Image& image) {
  const at::Tensor pixels = at::from_blob(const_cast<std::uint8_t*>(image.data.data()),
                                          {image.height, image.width, image.channels}, at::kByte);
  clip.select(1, frame).copy_(pixels.permute({2, 0, 1}));
}

PartKeeper::PartKeeper(const SpriteParts& parts, std::int64_t clips, std::int64_t height, std::int64_t width)
    : parts_(parts) {
  check(parts.frames >= 2, "eval: frames: expected at least 2, got ", parts.frames);
  for (std::size_t i = 0; i < parts.lengths.size(); ++i) {
    check(parts.lengths[i] >= 1 && (i == 0 || parts.lengths[i] > parts.lengths[i - 1]),
          "eval: lengths: expected growing numbers from 1 on, got ", parts.lengths[i]);
    kept_.push_back(at::zeros({clips, 3, parts.frames, height, width}, at::kByte));
  }
}

void PartKeeper::take(std::int64_t clip, std::int64_t first, std::span<const io::Image> frames) {
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    const std::int64_t begin = std::max(first, parts_.first(i)),
                       end = std::min(first + std::ssize(frames), parts_.first(i) + parts_.frames);
    for (std::int64_t frame = begin; frame < end; ++frame) {
      put_frame(kept_[i][clip], frame - parts_.first(i), frames[static_cast<std::size_t>(frame - first)]);
    }
  }
}

at::Tensor draw_part(std::span<const SpriteQuestion> questions, const data::ClipFormat& wanted,
                     std::int64_t first) {
  data::ClipFormat format = wanted;
  format.first = first;
  at::Tensor clips =
      at::empty({std::ssize(questions), 3, format.frames, format.height, format.width}, at::kByte);
  const std::int64_t size = 3 * format.frames * format.height * format.width;
  auto* pixels = clips.data_ptr<std::uint8_t>();
  at::parallel_for(0, std::ssize(questions), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      data::draw_clip(questions[static_cast<std::size_t>(i)].scene, format,
                      {pixels + i * size, static_cast<std::size_t>(size)});
  });
  return clips;
}

std::vector<SpriteAgreement> judge_part(std::span<const SpriteQuestion> questions, const at::Tensor& clips,
                                        double fps, const std::function<void(std::int64_t)>& on_some) {
  const std::int64_t count = std::ssize(questions);
  check(clips.dim() == 5 && clips.size(0) == count, "eval: clips: expected ", count, " of them, got ",
        clips.sizes());
  std::vector<SpriteAgreement> agreements(questions.size());
  const std::int64_t some = 8 * at::get_num_threads();  // at a time, so that a signal is heard soon
  for (std::int64_t from = 0; from < count; from += some) {
    const std::int64_t to = std::min(from + some, count);
    at::parallel_for(from, to, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto at = static_cast<std::size_t>(i);
        agreements[at] = compare(questions[at].scene.sprites.front(), judge_sprite(clips[i], fps));
      }
    });
    if (on_some) on_some(to);
  }
  return agreements;
}

}  // namespace pom::eval
