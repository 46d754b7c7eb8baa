// Which clip a number stands for, its frames, and the data set of all of them.
//
// The same bytes on every machine, as in draw_shape.cpp: sums, products, quotients and comparisons alone.
#include "pom/data/sprites.h"

#include <algorithm>
#include <array>
#include <iterator>

#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/base/noise.h"
#include "pom/base/suggest.h"
#include "pom/data/exact_math.h"
#include "pom/data/grounds.h"
#include "pom/data/layers.h"
#include "pom/data/sprite_shots.h"
#include "pom/data/streams.h"
#include "pom/data/uniform.h"
#include "pom/io/image.h"

namespace pom::data {
namespace {

// The uniform numbers of a clip, in this order: first those of the scene, then those of each sprite. Their
// places are part of every clip's identity.
enum SceneDraw {
  scene_wording,
  scene_two,
  scene_ground,
  scene_paint,
  scene_unnamed = scene_paint + ground_numbers,
  scene_numbers = 16
};
enum SpriteDraw {
  sprite_hue,
  sprite_kind,
  sprite_colour,
  sprite_path = sprite_colour + 3,
  sprite_direction,
  sprite_pace,
  sprite_speed,
  sprite_x,
  sprite_y,
  sprite_phase,
  sprite_radius,
  sprite_angle,
  sprite_spins,
  sprite_spin,
  sprite_way_round,
  sprite_pulses,
  sprite_pulse,
  sprite_numbers = 24
};
static_assert(scene_unnamed < scene_numbers && sprite_pulse < sprite_numbers);
constexpr std::int64_t most_sprites = 2;
static_assert(sprite_clip_numbers == scene_numbers + most_sprites * sprite_numbers);

// The shapes that training never sees in a hue: one of each, and no shape twice.
constexpr std::array<std::int64_t, 8> held_out_kinds = {1, 4, 7, 0, 3, 6, 9, 2};

constexpr float two_pi = static_cast<float>(2 * exact::pi);
constexpr std::array<float, 3> paces = {0.15f, 0.3f, 0.6f};  // sides a second

bool happens(double share, float u) {
  return static_cast<double>(u) < share;
}

struct Novelty {
  bool pairs, wordings;
};

Novelty novelty_of(const std::string& split) {
  if (split == "training") return {false, false};
  if (split == "new_pairs") return {true, false};
  if (split == "new_wordings") return {false, true};
  if (split == "new_both") return {true, true};
  fail("sprites: split: expected training, new_pairs, new_wordings or new_both, got \"", split, "\"",
       suggestion(split, std::vector<std::string>{"training", "new_pairs", "new_wordings", "new_both"}));
}

std::int64_t choose_wording(bool held_out, float u) {
  std::int64_t fitting = 0;
  for (std::int64_t w = 0; w < wording_count(); ++w) fitting += is_held_out_wording(w) == held_out ? 1 : 0;
  std::int64_t left = one_of(fitting, u), wording = 0;
  while (is_held_out_wording(wording) != held_out || left-- > 0) ++wording;
  return wording;
}

// The second sprite has another hue than the first: a caption must not leave open which is which.
void choose_pair(Sprite& sprite, const Sprite* first, bool held_out, const float* u) {
  const auto kinds = std::ssize(shape_names()), hues = std::ssize(hue_names());
  sprite.hue = first == nullptr ? one_of(hues, u[sprite_hue])
                                : (first->hue + 1 + one_of(hues - 1, u[sprite_hue])) % hues;
  const std::int64_t held = held_out_kinds[static_cast<std::size_t>(sprite.hue)];
  const std::int64_t other = one_of(kinds - 1, u[sprite_kind]);
  sprite.kind = held_out ? held : other + (other >= held ? 1 : 0);
  const std::array<float, 3> colour = hue_colour(sprite.hue);
  for (std::size_t c = 0; c < 3; ++c)
    sprite.colour[c] = std::clamp(colour[c] + between(-0.03f, 0.03f, u[sprite_colour + c]), 0.0f, 1.0f);
}

void choose_path(Sprite& sprite, const SpriteOptions& options, const float* u) {
  const double which = u[sprite_path];
  sprite.motion = which < options.staying                      ? Motion::stay
                  : which < options.staying + options.bouncing ? Motion::bounce
                                                               : Motion::drift;
  const std::int64_t step = options.directions == 4 ? 2 : 1;
  const std::int64_t ways = sprite.motion == Motion::bounce ? 4 / step : 8 / step;
  sprite.direction = step * one_of(ways, u[sprite_direction]);
  sprite.pace = one_of(std::ssize(paces), u[sprite_pace]);
  const float speed = paces[static_cast<std::size_t>(sprite.pace)] * between(0.9f, 1.1f, u[sprite_speed]);
  sprite.speed = sprite.motion == Motion::stay ? 0 : speed;
  sprite.x = between(-0.5f, 0.5f, u[sprite_x]);
  sprite.y = between(-0.5f, 0.5f, u[sprite_y]);
  sprite.phase = u[sprite_phase];
}

// Discs and rings look the same however they are turned.
bool can_spin(const Sprite& sprite) {
  const std::string& name = shape_names()[static_cast<std::size_t>(sprite.kind)];
  return name != "circle" && name != "ring";
}

void choose_form(Sprite& sprite, const SpriteOptions& options, bool alone, const float* u) {
  const float least = alone ? 0.2f : 0.16f;
  sprite.radius = least * between(1.0f, alone ? 1.5f : 1.4f, u[sprite_radius]);
  sprite.angle = between(-1.0f / 12, 1.0f / 12, u[sprite_angle]);
  if (can_spin(sprite) && happens(options.spinning, u[sprite_spins]))
    sprite.spin = between(0.15f, 0.35f, u[sprite_spin]) * (u[sprite_way_round] < 0.5f ? -1.0f : 1.0f);
  if (happens(options.pulsing, u[sprite_pulses])) sprite.pulse = between(0.35f, 0.6f, u[sprite_pulse]);
}

std::vector<std::int64_t> hues_of(const std::vector<Sprite>& sprites) {
  std::vector<std::int64_t> hues;
  for (const Sprite& sprite : sprites) hues.push_back(sprite.hue);
  return hues;
}

void check_options(const SpriteOptions& options) {
  check(options.directions == 4 || options.directions == 8, "sprites: directions: expected 4 or 8, got ",
        options.directions);
  for (const double share : {options.two, options.bouncing, options.staying, options.spinning,
                             options.pulsing, options.changes, options.unnamed})
    check(share >= 0 && share <= 1, "sprites: shares: expected 0 to 1, got ", share);
  check(options.bouncing + options.staying <= 1, "sprites: bouncing + staying: expected at most 1, got ",
        options.bouncing + options.staying);
}

void check_changes(const SpriteOptions& options, std::int64_t frames) {
  const std::int64_t every = options.change_every;
  check(options.changes == 0 || (every >= 1 && every < frames && frames % every == 0),
        "data: change_every: expected a divisor of data.frames (", frames, ") below it, got ", every);
}

// ---- as a data set

class Sprites final : public Dataset {
 public:
  Sprites(const DataConfig& config, std::uint64_t seed, std::int64_t size, std::int64_t first)
      : options_(config.sprites),
        format_{config.size[0], config.size[1], config.frames, config.fps, 0},
        seed_(seed),
        size_(size),
        first_(first) {}

  std::int64_t size() const override { return size_; }
  const std::vector<std::string>& classes() const override {
    static const std::vector<std::string> none;
    return none;
  }
  std::vector<std::int64_t> shape() const override {
    return {3, format_.frames, format_.height, format_.width};
  }
  std::int64_t parts() const override { return options_.parts(format_.frames); }

  Example get(std::int64_t index, std::int64_t) const override {
    check(index >= 0 && (size_ == 0 || index < size_), "sprites: index: expected 0 to ", size_ - 1, ", got ",
          index);
    const std::vector<SpriteShot> shots = sprite_shots_at(options_, seed_, first_ + index, format_);
    std::vector<std::string> captions = captions_of_parts(shots, parts(), format_.frames);
    Example example{at::empty(shape(), at::kByte), 0, std::move(captions.front())};
    example.later.assign(std::make_move_iterator(captions.begin() + 1),
                         std::make_move_iterator(captions.end()));
    draw_shots(shots, format_,
               {example.picture.data_ptr<std::uint8_t>(), static_cast<std::size_t>(example.picture.numel())});
    return example;
  }

  std::string name_of(std::int64_t index) const override {
    return "sprites item " + std::to_string(first_ + index);
  }

 private:
  SpriteOptions options_;
  ClipFormat format_;
  std::uint64_t seed_;
  std::int64_t size_, first_;
};

}  // namespace

const std::vector<std::string>& direction_names() {
  static const std::vector<std::string> names = {"right", "upper right", "up",   "upper left",
                                                 "left",  "lower left",  "down", "lower right"};
  return names;
}

const std::vector<std::string>& pace_names() {
  static const std::vector<std::string> names = {"slow", "steady", "fast"};
  return names;
}

bool is_held_out_pair(std::int64_t hue, std::int64_t kind) {
  check(hue >= 0 && hue < std::ssize(held_out_kinds), "sprites: hue: expected 0 to ",
        held_out_kinds.size() - 1, ", got ", hue);
  return held_out_kinds[static_cast<std::size_t>(hue)] == kind;
}

bool hides(std::int64_t ground, const std::vector<Sprite>& sprites) {
  const std::string& name = ground_names().at(static_cast<std::size_t>(ground));
  return std::ranges::any_of(sprites, [&](const Sprite& sprite) {
    return hue_names()[static_cast<std::size_t>(sprite.hue)] == name;
  });
}

SpriteClip sprite_clip_at(const SpriteOptions& options, std::uint64_t seed, std::int64_t index) {
  check(index >= 0 && index < (std::int64_t{1} << 55),
        "sprites: index: expected at least 0 and below 2^55, got ", index);
  std::array<float, sprite_clip_numbers> u;
  fill_uniform(u.data(), sprite_clip_numbers, {seed, noise_for::data_content, streams::sprites},
               index * sprite_clip_numbers);
  return sprite_clip_of(options, u);
}

SpriteClip sprite_clip_of(const SpriteOptions& options, std::span<const float, sprite_clip_numbers> u) {
  check_options(options);
  const Novelty novelty = novelty_of(options.split);
  SpriteClip clip;
  clip.wording = choose_wording(novelty.wordings, u[scene_wording]);
  clip.sprites.resize(happens(options.two, u[scene_two]) ? 2 : 1);
  const float* numbers = u.data() + scene_numbers;
  for (Sprite& sprite : clip.sprites) {
    choose_pair(sprite, &sprite == &clip.sprites[0] ? nullptr : &clip.sprites[0], novelty.pairs, numbers);
    choose_path(sprite, options, numbers);
    choose_form(sprite, options, clip.sprites.size() == 1, numbers);
    numbers += sprite_numbers;
  }
  clip.ground = choose_ground(hues_of(clip.sprites), u[scene_ground]);
  clip.named = !happens(options.unnamed, u[scene_unnamed]);
  paint_ground(clip.background, clip.ground, u.data() + scene_paint);
  return clip;
}

void check_clip_format(const char* operation, const ClipFormat& format, std::int64_t bytes) {
  check(format.frames >= 1, operation, ": frames: expected at least 1, got ", format.frames);
  check(format.fps > 0, operation, ": fps: expected above 0, got ", format.fps);
  check(format.first >= 0 && format.first < (std::int64_t{1} << 40), operation,
        ": first: expected at least 0 and below 2^40, got ", format.first);
  io::check_size(operation, format.width, format.height);
  const std::int64_t expected = 3 * format.frames * format.width * format.height;
  check(bytes == expected, operation, ": out: expected ", expected, " bytes, got ", bytes);
}

void draw_clip(const SpriteClip& clip, const ClipFormat& format, std::span<std::uint8_t> out) {
  check_clip_format("draw_clip", format, std::ssize(out));
  const std::int64_t frame = format.width * format.height, channel = format.frames * frame;
  Layers layers(clip.background, format.width, format.height);
  for (std::int64_t f = 0; f < format.frames; ++f) {
    const double seconds = static_cast<double>(format.first + f) / format.fps;
    layers.clear();
    for (std::size_t i = clip.sprites.size(); i-- > 0;)
      layers.add(sprite_at(clip.sprites[i], seconds, format.width, format.height));
    layers.put(out.data() + f * frame, channel);
  }
}

std::shared_ptr<const Dataset> make_sprites(const DataConfig& config, std::uint64_t seed, std::int64_t size,
                                            std::int64_t first) {
  check_picture_size(config);
  check_clip_length(config);
  check(size >= 0 && first >= 0, "sprites: size and first: expected at least 0, got ", size, " and ", first);
  check(!config.flip, "data: flip: expected false where kind is sprites: captions say left and right");
  check_options(config.sprites);
  novelty_of(config.sprites.split);
  check_changes(config.sprites, config.frames);
  return std::make_shared<Sprites>(config, seed, size, first);
}

}  // namespace pom::data
