// Captions: several ways to say what a clip of sprites shows. Those that are held out of training use its
// words in other orders, so that nothing but the wording is new.
#include <array>
#include <string>
#include <string_view>

#include "pom/base/error.h"
#include "pom/data/sprites.h"

namespace pom::data {
namespace {

// {ground} is the ground's name, {sprites} the sprites joined with "and"; within a sprite {a} is its article,
// {does} what it does.
struct Wording {
  const char* scene;
  const char* sprite;
  const char *drifts, *bounces, *stays;
  bool far;  // "to the upper left" and not "up and left"
  bool held_out = false;
};

constexpr std::array wordings = {
    Wording{"{sprites} over {ground}", "{a} {hue} {shape} {does}", "drifts", "bounces", "stays in place",
            true},
    Wording{"{sprites} on a {ground} background", "{a} {hue} {shape} {does}", "moves", "goes", "stands still",
            false},
    Wording{"{sprites}, {ground} background", "{hue} {shape} {does}", "moving", "bouncing", "standing still",
            false},
    Wording{"over {ground}, {sprites}", "{a} {hue} {shape} {does}", "floats", "swings", "stays in place",
            true},
    Wording{"{sprites} across {ground}", "a {shape} that is {hue} {does}", "slides", "bounces",
            "stands still", false},
    Wording{"on {ground}: {sprites}", "{a} {hue} {shape} {does}", "drifting", "bouncing", "standing still",
            true},
    Wording{"on a {ground} background, {sprites}", "{a} {hue} {shape} {does}", "drifts", "bounces",
            "stays in place", false, true},
    Wording{"across {ground}, {sprites}", "a {shape} that is {hue} {does}", "floats", "goes", "stands still",
            true, true},
    Wording{"{ground} background: {sprites}", "{hue} {shape} {does}", "drifting", "bouncing",
            "standing still", false, true},
};

constexpr std::array<const char*, 8> far_ways = {
    "to the right", "to the upper right", "upwards",   "to the upper left",
    "to the left",  "to the lower left",  "downwards", "to the lower right"};
constexpr std::array<const char*, 8> near_ways = {"right", "up and right",  "up",   "up and left",
                                                  "left",  "down and left", "down", "down and right"};
constexpr std::array<const char*, 4> far_lines = {"from side to side",
                                                  "between the lower left and the upper right", "up and down",
                                                  "between the upper left and the lower right"};
constexpr std::array<const char*, 4> near_lines = {"left and right", "between lower left and upper right",
                                                   "up and down", "between upper left and lower right"};

void replace(std::string& text, std::string_view mark, std::string_view by) {
  const std::size_t place = text.find(mark);
  if (place != std::string::npos) text.replace(place, mark.size(), by);
}

template <class Table>
const char* entry(const Table& table, std::int64_t index) {
  check(index >= 0 && index < std::ssize(table), "caption: direction: expected 0 to ", std::ssize(table) - 1,
        ", got ", index);
  return table[static_cast<std::size_t>(index)];
}

std::string movement(const Sprite& sprite, const Wording& wording) {
  if (sprite.motion == Motion::stay) return wording.stays;
  const bool bounces = sprite.motion == Motion::bounce;
  std::string text = bounces ? wording.bounces : wording.drifts;
  if (sprite.pace != 1) text += sprite.pace == 0 ? " slowly" : " quickly";
  const char* way = bounces ? entry(wording.far ? far_lines : near_lines, sprite.direction)
                            : entry(wording.far ? far_ways : near_ways, sprite.direction);
  return text + " " + way;
}

std::string action(const Sprite& sprite, const Wording& wording) {
  const char* growing = wording.far ? "growing and shrinking" : "pulsing";
  std::string text = movement(sprite, wording);
  if (sprite.spin != 0) text += " while spinning";
  if (sprite.pulse > 0) text += std::string(sprite.spin != 0 ? " and " : " while ") + growing;
  return text;
}

std::string said_of(const Sprite& sprite, const Wording& wording) {
  const std::string& hue = hue_names().at(static_cast<std::size_t>(sprite.hue));
  std::string text = wording.sprite;
  replace(text, "{a}", hue == "orange" ? "an" : "a");
  replace(text, "{hue}", hue);
  replace(text, "{shape}", shape_names().at(static_cast<std::size_t>(sprite.kind)));
  replace(text, "{does}", action(sprite, wording));
  return text;
}

}  // namespace

std::int64_t wording_count() {
  return std::ssize(wordings);
}

bool is_held_out_wording(std::int64_t wording) {
  check(wording >= 0 && wording < wording_count(), "caption: wording: expected 0 to ", wording_count() - 1,
        ", got ", wording);
  return wordings[static_cast<std::size_t>(wording)].held_out;
}

std::string caption_of(const SpriteClip& clip, std::int64_t number) {
  is_held_out_wording(number);  // checks it
  const Wording& wording = wordings[static_cast<std::size_t>(number)];
  std::string sprites;
  for (const Sprite& sprite : clip.sprites)
    sprites += (sprites.empty() ? "" : " and ") + said_of(sprite, wording);
  std::string text = clip.named ? wording.scene : "{sprites}";
  replace(text, "{sprites}", sprites);
  replace(text, "{ground}", ground_names().at(static_cast<std::size_t>(clip.ground)));
  return text;
}

std::string caption_of(const SpriteClip& clip) {
  return caption_of(clip, clip.wording);
}

}  // namespace pom::data
