// Pictures and clips of two to four objects with relations between them, and captions, without end: scene i
// of seed s is always the same, and any size, length and frame rate show the same scene.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pom/data/dataset.h"
#include "pom/data/scene_options.h"
#include "pom/data/shapes.h"
#include "pom/data/sprites.h"

namespace pom::data {

// Of a relation "a … b". Each is followed by its inverse: a above b is b below a.
enum class Relation { above, below, left_of, right_of, in_front_of, behind };

const std::vector<std::string>& relation_names();  // above, below, left of, right of, in front of, behind
Relation inverse_of(Relation what);

// stay: in place. sway: to and fro, level. bob: up and down. No relation ends by it.
enum class SceneMotion { stay, sway, bob };

// One to three objects that differ in nothing but their places and angles: "two green squares". No two groups
// of a scene have one hue; they may have one kind.
struct SceneGroup {
  std::int64_t kind = 0;   // of shape_names()
  std::int64_t hue = 0;    // of hue_names()
  std::int64_t count = 1;  // 1 to 3
  SceneMotion motion = SceneMotion::stay;
  float reach = 0;  // of a motion: how far from the middle of its way, in shorter sides
  float phase = 0;  // of a motion at time 0, in turns
  float rate = 0;   // turns a second
  enum class Said {
    all,
    kind,
    hue
  } said = Said::all;  // by the caption: "a red star", "a star", "a red shape"
};

// Lengths in shorter sides of the picture, from its middle, y upwards. Every object is whole and inside the
// largest square in the middle of the picture.
struct SceneObject {
  std::int64_t group = 0;           // of Scene::groups
  std::int64_t kind = 0, hue = 0;   // those of its group
  float colour[3] = {};             // 0 to 1, near its hue
  float x = 0, y = 0;               // the centre; of a motion the middle of its way
  float radius = 0.15f, angle = 0;  // in turns against the clock
};

// Holds for every member of both groups. In front of: the first covers between 0.12 and 0.35 of the other
// (both are groups of one). The others: along its axis the two are apart by their whole reach, and by more
// than 1.5 times their distance across it. Whatever is not said to overlap has a gap of 0.04 at least.
struct SceneRelation {
  std::int64_t a = 0, b = 0;  // of Scene::groups
  Relation what = Relation::above;
};

struct Scene {
  std::vector<SceneObject> objects;      // front first
  std::vector<SceneGroup> groups;        // one to three
  std::vector<SceneRelation> relations;  // one less: of 0 and 1, then of 0 and 2 or of 1 and 2
  std::int64_t ground = 0;               // of ground_names(); of no group's hue
  std::int64_t wording = 0;              // of its caption
  Shape background;                      // of which only the ground is drawn
};

// What is held out of training and scored apart; pairs of hue and kind are those of sprites
// (is_held_out_pair).
bool is_held_out_relation(std::int64_t kind_a, Relation what, std::int64_t kind_b);  // one in ten
bool is_held_out_scene_wording(std::int64_t wording);
bool names_ground(std::int64_t wording);  // whether captions of this wording say what the ground is
bool refers_by_hue(const Scene& scene);   // whether the caption does: "…: red above blue"
std::int64_t scene_wording_count();

// The scene that (options, seed, index) stands for. In training no pair, relation or wording is one that is
// held out; in the other splits all pairs, all relations, or the wording is, and in new_all each of them.
Scene scene_at(const SceneOptions& options, std::uint64_t seed, std::int64_t index);

// "a red star above a blue ring and left of two green squares over black".
std::string scene_caption(const Scene& scene);
// The same in another wording.
std::string scene_caption(const Scene& scene, std::int64_t wording);

// One of its objects as a drawing, `seconds` after the beginning.
Shape scene_object_at(const Scene& scene, const SceneObject& object, double seconds);

// out: planar (3, F, H, W). Frame f is the scene at f / fps seconds; with one frame it is a picture.
void draw_scene(const Scene& scene, const ClipFormat& format, std::span<std::uint8_t> out);

// config.scenes with its split.
SceneOptions scene_options_of(const DataConfig& config);

// Scenes first, first + 1, … of a seed, `size` of them (0: without end), as config.size, frames, fps and
// scene_options_of(config) say.
std::shared_ptr<const Dataset> make_scenes(const DataConfig& config, std::uint64_t seed,
                                           std::int64_t size = 0, std::int64_t first = 0);

}  // namespace pom::data
