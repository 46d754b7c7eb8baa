// Clips of shapes that move, with captions, without end: clip i of seed s is always the same, and any size,
// length and frame rate show the same scene. F frames of H x W pixels.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pom/data/dataset.h"
#include "pom/data/shapes.h"
#include "pom/data/sprite_options.h"

namespace pom::data {

const std::vector<std::string>& ground_names();           // black, white, …
std::array<float, 3> ground_colour(std::int64_t ground);  // RGB, 0 to 1; grounds are near it
const std::vector<std::string>&
direction_names();                             // right, upper right, …: eighths of a turn against the clock
const std::vector<std::string>& pace_names();  // slow, steady, fast

// drift: straight on; what leaves the picture on one side comes in on the other, so that a clip never ends.
// bounce: to and fro between two sides. stay: in place. Nothing is cut by an edge that it does not cross.
enum class Motion { drift, bounce, stay };

// Lengths in shorter sides of the picture, y upwards, times in seconds.
struct Sprite {
  std::int64_t kind = 0;       // of shape_names()
  std::int64_t hue = 0;        // of hue_names()
  std::int64_t direction = 0;  // of direction_names(); of a bounce 0 to 3: the line it goes along
  std::int64_t pace = 1;       // of pace_names()
  Motion motion = Motion::drift;
  float colour[3] = {};  // 0 to 1, near its hue
  float x = 0, y = 0;    // at time 0 from the middle, in shares of the room it has (-1/2 to 1/2)
  float phase = 0;       // of a bounce at time 0, in turns
  float speed = 0;       // a second
  float radius = 0.25f;  // at its largest
  float angle = 0;       // at time 0, in turns against the clock
  float spin = 0;        // turns a second against the clock
  float pulse = 0;       // growths a second; at time 0 it is at its largest
};

struct SpriteClip {
  std::vector<Sprite> sprites;  // one or two; the first is in front
  std::int64_t ground = 0;      // of ground_names()
  std::int64_t wording = 0;     // of its caption
  bool named = true;            // whether its caption says what the ground is
  Shape background;             // of which only the ground is drawn
};

// What is held out of training and scored apart.
bool is_held_out_pair(std::int64_t hue, std::int64_t kind);  // one shape of each hue
bool is_held_out_wording(std::int64_t wording);
std::int64_t wording_count();

// The clip that (options, seed, index) stands for. In training no pair and no wording is one that is held
// out; in new_pairs all pairs are, in new_wordings the wording, in new_both both.
SpriteClip sprite_clip_at(const SpriteOptions& options, std::uint64_t seed, std::int64_t index);

// The clip that so many uniform numbers make.
inline constexpr std::int64_t sprite_clip_numbers = 64;
SpriteClip sprite_clip_of(const SpriteOptions& options, std::span<const float, sprite_clip_numbers> numbers);

// Whether one of these sprites has the colour of that ground.
bool hides(std::int64_t ground, const std::vector<Sprite>& sprites);

// "a red star drifts slowly to the left over blue"; without "over blue" where the ground is not named.
std::string caption_of(const SpriteClip& clip);
// The same in another wording.
std::string caption_of(const SpriteClip& clip, std::int64_t wording);

struct ClipFormat {
  std::int64_t width = 32, height = 32, frames = 16;
  double fps = 8;
  std::int64_t first = 0;  // the number of the first frame: frame f is the scene at f / fps seconds
};

// That `bytes` of pixels are what a clip of this format takes; errors begin with `operation`.
void check_clip_format(const char* operation, const ClipFormat& format, std::int64_t bytes);

// A sprite as a drawing, `seconds` after the beginning, in a picture of this width and height.
Shape sprite_at(const Sprite& sprite, double seconds, std::int64_t width, std::int64_t height);

// Makes a sprite be at (x, y) at that time, as sprite_at gives them, or as near to it as its way allows: none
// is cut by an edge that it does not cross, and a bounce has its line.
void move_sprite(Sprite& sprite, double x, double y, double seconds, std::int64_t width, std::int64_t height);

// out: planar (3, F, H, W). A longer clip begins with the frames of a shorter one.
void draw_clip(const SpriteClip& clip, const ClipFormat& format, std::span<std::uint8_t> out);

// Clips first, first + 1, … of a seed, `size` of them (0: without end), as config.size, frames, fps and
// sprites say.
std::shared_ptr<const Dataset> make_sprites(const DataConfig& config, std::uint64_t seed,
                                            std::int64_t size = 0, std::int64_t first = 0);

}  // namespace pom::data
