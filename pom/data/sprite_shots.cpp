#include "pom/data/sprite_shots.h"

#include <algorithm>
#include <array>

#include "pom/base/error.h"
#include "pom/base/noise.h"
#include "pom/data/streams.h"
#include "pom/data/uniform.h"

namespace pom::data {
namespace {

// The uniform numbers of a change: those of the scene that follows, then these. Their places are part of
// every clip's identity.
enum ChangeDraw { change_happens = sprite_clip_numbers, change_place, change_numbers = 128 };

}  // namespace

SpriteClip continued(const SpriteClip& before, SpriteClip next, double seconds, std::int64_t width,
                     std::int64_t height) {
  const std::size_t both = std::min(before.sprites.size(), next.sprites.size());
  const bool as_many = before.sprites.size() == next.sprites.size();
  for (std::size_t i = 0; i < both; ++i) {
    const Shape was = sprite_at(before.sprites[i], seconds, width, height);
    Sprite& sprite = next.sprites[i];
    if (as_many) sprite.radius = before.sprites[i].radius;  // two are smaller than one
    move_sprite(sprite, was.x, was.y, seconds, width, height);
  }
  if (!next.named && hides(before.ground, next.sprites)) next.named = true;
  if (!next.named || next.ground == before.ground) {
    next.ground = before.ground;
    next.background = before.background;
  }
  return next;
}

std::vector<SpriteShot> sprite_shots_at(const SpriteOptions& options, std::uint64_t seed, std::int64_t index,
                                        const ClipFormat& format) {
  std::vector<SpriteShot> shots = {{0, sprite_clip_at(options, seed, index)}};
  const std::int64_t parts = options.parts(format.frames);
  if (parts < 2) return shots;
  std::array<float, change_numbers> u;
  fill_uniform(u.data(), change_numbers, {seed, noise_for::data_content, streams::sprite_changes},
               index * change_numbers);
  if (static_cast<double>(u[change_happens]) >= options.changes) return shots;
  const std::int64_t first = (1 + one_of(parts - 1, u[change_place])) * options.change_every;
  const SpriteClip next =
      sprite_clip_of(options, std::span<const float, change_numbers>(u).first<sprite_clip_numbers>());
  shots.push_back({first, continued(shots.front().clip, next, static_cast<double>(first) / format.fps,
                                    format.width, format.height)});
  return shots;
}

void draw_shots(std::span<const SpriteShot> shots, const ClipFormat& format, std::span<std::uint8_t> out) {
  check(!shots.empty() && shots.front().first == 0, "draw_shots: shots: expected one from frame 0 on");
  if (shots.size() == 1) return draw_clip(shots.front().clip, format, out);
  check(format.first == 0, "draw_shots: first: expected 0, got ", format.first);
  const std::int64_t frame = format.width * format.height;
  check(std::ssize(out) == 3 * format.frames * frame, "draw_shots: out: expected ", 3 * format.frames * frame,
        " bytes, got ", out.size());
  std::vector<std::uint8_t> planes;
  for (std::size_t i = 0; i < shots.size(); ++i) {
    const std::int64_t end = i + 1 < shots.size() ? shots[i + 1].first : format.frames;
    ClipFormat part = format;
    part.first = shots[i].first;
    part.frames = end - shots[i].first;
    planes.resize(static_cast<std::size_t>(3 * part.frames * frame));
    draw_clip(shots[i].clip, part, planes);
    for (std::int64_t c = 0; c < 3; ++c)
      std::copy_n(planes.begin() + c * part.frames * frame, part.frames * frame,
                  out.begin() + (c * format.frames + shots[i].first) * frame);
  }
}

std::vector<std::string> captions_of_parts(std::span<const SpriteShot> shots, std::int64_t parts,
                                           std::int64_t frames) {
  std::vector<std::string> captions;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t first = part * (frames / parts);
    const auto next = std::ranges::find_if(shots, [&](const SpriteShot& s) { return s.first > first; });
    captions.push_back(caption_of((next - 1)->clip));
  }
  return captions;
}

}  // namespace pom::data
