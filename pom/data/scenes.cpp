// Which scene a number stands for, what it looks like at a time, and the data set of all of them.
//
// The same bytes on every machine, as in draw_shape.cpp: sums, products, quotients and comparisons alone.
#include "pom/data/scenes.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <ATen/ops/empty.h>

#include "pom/base/error.h"
#include "pom/base/suggest.h"
#include "pom/data/exact_math.h"
#include "pom/data/grounds.h"
#include "pom/data/layers.h"
#include "pom/data/scene_numbers.h"
#include "pom/data/scene_places.h"
#include "pom/data/uniform.h"
#include "pom/io/image.h"

namespace pom::data {
namespace {

// What a scene may consist of, and how often it does, in parts of all that options.objects allows.
struct Counts {
  int parts;
  std::array<std::int64_t, 3> members;  // of each group; 0: there is none
};

constexpr std::array counts = {
    Counts{1, {2, 0, 0}}, Counts{1, {3, 0, 0}}, Counts{4, {1, 1, 0}}, Counts{2, {1, 2, 0}},
    Counts{2, {2, 1, 0}}, Counts{2, {1, 3, 0}}, Counts{2, {3, 1, 0}}, Counts{2, {2, 2, 0}},
    Counts{4, {1, 1, 1}}, Counts{2, {1, 1, 2}}, Counts{2, {1, 2, 1}}, Counts{2, {2, 1, 1}},
};

struct SceneNovelty {
  bool pairs, relations, wordings;
};

SceneNovelty scene_novelty(const std::string& split) {
  if (split == "training") return {false, false, false};
  if (split == "new_pairs") return {true, false, false};
  if (split == "new_relations") return {false, true, false};
  if (split == "new_wordings") return {false, false, true};
  if (split == "new_all") return {true, true, true};
  const std::vector<std::string> all = {"training", "new_pairs", "new_relations", "new_wordings", "new_all"};
  fail("scenes: split: expected training, new_pairs, new_relations, new_wordings or new_all, got \"", split,
       "\"", suggestion(split, all));
}

void check_options(const SceneOptions& options) {
  check(options.objects >= 2 && options.objects <= 4, "scenes: objects: expected 2 to 4, got ",
        options.objects);
  check(options.swaying >= 0 && options.swaying <= 1, "scenes: swaying: expected 0 to 1, got ",
        options.swaying);
  check(options.vague >= 0 && options.vague <= 1, "scenes: vague: expected 0 to 1, got ", options.vague);
}

std::int64_t choose_scene_wording(bool held_out, float u) {
  std::vector<std::int64_t> fitting;
  for (std::int64_t w = 0; w < scene_wording_count(); ++w)
    if (is_held_out_scene_wording(w) == held_out) fitting.push_back(w);
  return fitting[static_cast<std::size_t>(one_of(std::ssize(fitting), u))];
}

// Where all relations are to be new there has to be one.
void choose_counts(Scene& scene, const SceneOptions& options, bool related, float u) {
  const auto allowed = [&](const Counts& c) {
    return c.members[0] + c.members[1] + c.members[2] <= options.objects && (!related || c.members[1] > 0);
  };
  std::int64_t parts = 0;
  for (const Counts& c : counts) parts += allowed(c) ? c.parts : 0;
  std::int64_t left = one_of(parts, u);
  for (const Counts& c : counts) {
    if (!allowed(c)) continue;
    left -= c.parts;
    if (left >= 0) continue;
    for (const std::int64_t members : c.members)
      if (members > 0) scene.groups.push_back({.count = members});
    return;
  }
}

// Only single objects overlap, and only two of a scene. Of one group nothing is said twice: in "a star above
// a ring, above a square" it would be open what is above the square.
void choose_relations(Scene& scene, SceneNumbers& numbers) {
  bool overlapping = false;
  for (std::int64_t b = 1; b < std::ssize(scene.groups); ++b) {
    const std::int64_t a = b == 2 && numbers.next() < 0.5f ? 1 : 0;
    const bool single = scene.groups[static_cast<std::size_t>(a)].count == 1 &&
                        scene.groups[static_cast<std::size_t>(b)].count == 1;
    const std::int64_t ways = single && !overlapping ? 6 : 4;
    auto what = static_cast<Relation>(one_of(ways, numbers.next()));
    while (b == 2 && a == 0 && what == scene.relations[0].what)
      what = static_cast<Relation>(one_of(ways, numbers.next()));
    overlapping |= what == Relation::in_front_of || what == Relation::behind;
    scene.relations.push_back({a, b, what});
  }
}

// Whether group g, of those up to it, is what its split asks for.
bool is_wanted(const Scene& scene, std::size_t g, const SceneNovelty& novelty) {
  const SceneGroup& group = scene.groups[g];
  for (std::size_t i = 0; i < g; ++i)
    if (scene.groups[i].hue == group.hue) return false;
  if (is_held_out_pair(group.hue, group.kind) != novelty.pairs) return false;
  if (g == 0) return true;
  const SceneRelation& relation = scene.relations[g - 1];
  const std::int64_t other = scene.groups[static_cast<std::size_t>(relation.a)].kind;
  return is_held_out_relation(other, relation.what, group.kind) == novelty.relations;
}

// Some first groups have no second one: then false.
bool choose_looks(Scene& scene, const SceneNovelty& novelty, SceneNumbers& numbers) {
  constexpr int most_draws = 400;
  for (std::size_t g = 0; g < scene.groups.size(); ++g) {
    int draws = 0;
    do {
      if (draws++ == most_draws) return false;
      scene.groups[g].hue = one_of(std::ssize(hue_names()), numbers.next());
      scene.groups[g].kind = one_of(std::ssize(shape_names()), numbers.next());
    } while (!is_wanted(scene, g, novelty));
  }
  return true;
}

// What overlaps stays as it is.
void choose_motions(Scene& scene, const SceneOptions& options, SceneNumbers& numbers) {
  for (std::size_t g = 0; g < scene.groups.size(); ++g) {
    const float moves = numbers.next(), level = numbers.next(), reach = numbers.next();
    const float phase = numbers.next(), rate = numbers.next();
    const bool overlapping = std::ranges::any_of(scene.relations, [&](const SceneRelation& r) {
      const auto group = static_cast<std::int64_t>(g);
      return (r.a == group || r.b == group) &&
             (r.what == Relation::in_front_of || r.what == Relation::behind);
    });
    if (overlapping || static_cast<double>(moves) >= options.swaying) continue;
    SceneGroup& group = scene.groups[g];
    group.motion = level < 0.5f ? SceneMotion::sway : SceneMotion::bob;
    group.reach = between(0.03f, 0.05f, reach);
    group.phase = phase;
    group.rate = between(0.4f, 0.7f, rate);
  }
}

// False where what was drawn fits no split or no picture.
bool choose_scene(Scene& scene, const SceneOptions& options, const SceneNovelty& novelty,
                  SceneNumbers& numbers) {
  scene = {};
  choose_counts(scene, options, novelty.relations, numbers.next());
  choose_relations(scene, numbers);
  if (!choose_looks(scene, novelty, numbers)) return false;
  choose_motions(scene, options, numbers);
  return place_objects(scene, numbers);
}

void choose_background(Scene& scene, SceneNumbers& numbers) {
  std::vector<std::int64_t> hues;
  for (const SceneGroup& group : scene.groups) hues.push_back(group.hue);
  scene.ground = choose_ground(hues, numbers.next());
  std::array<float, ground_numbers> paint;
  for (float& number : paint) number = numbers.next();
  paint_ground(scene.background, scene.ground, paint.data());
}

// One after the others, so that everything else is what it would be with all said.
void choose_what_is_said(Scene& scene, const SceneOptions& options, SceneNumbers& numbers) {
  if (options.vague == 0) return;
  const bool by_hue = refers_by_hue(scene);
  for (SceneGroup& group : scene.groups) {
    const auto chance = static_cast<double>(numbers.next());
    if (chance >= options.vague) continue;
    const auto alike = [&](const SceneGroup& other) { return other.kind == group.kind; };
    const bool two = std::ranges::count_if(scene.groups, alike) > 1;  // "a star above a star" would be open
    group.said = by_hue || two || chance < options.vague / 2 ? SceneGroup::Said::hue : SceneGroup::Said::kind;
  }
}

// ---- as a data set

class Scenes final : public Dataset {
 public:
  Scenes(const DataConfig& config, std::uint64_t seed, std::int64_t size, std::int64_t first)
      : options_(scene_options_of(config)),
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

  Example get(std::int64_t index, std::int64_t) const override {
    check(index >= 0 && (size_ == 0 || index < size_), "scenes: index: expected 0 to ", size_ - 1, ", got ",
          index);
    const Scene scene = scene_at(options_, seed_, first_ + index);
    Example example{at::empty(shape(), at::kByte), 0, scene_caption(scene)};
    draw_scene(scene, format_,
               {example.picture.data_ptr<std::uint8_t>(), static_cast<std::size_t>(example.picture.numel())});
    return example;
  }

  std::string name_of(std::int64_t index) const override {
    return "scenes item " + std::to_string(first_ + index);
  }

 private:
  SceneOptions options_;
  ClipFormat format_;
  std::uint64_t seed_;
  std::int64_t size_, first_;
};

}  // namespace

const std::vector<std::string>& relation_names() {
  static const std::vector<std::string> names = {"above",    "below",       "left of",
                                                 "right of", "in front of", "behind"};
  return names;
}

Relation inverse_of(Relation what) {
  return static_cast<Relation>(static_cast<int>(what) ^ 1);
}

bool is_held_out_relation(std::int64_t kind_a, Relation what, std::int64_t kind_b) {
  const auto kinds = std::ssize(shape_names());
  check(kind_a >= 0 && kind_a < kinds && kind_b >= 0 && kind_b < kinds, "scenes: kind: expected 0 to ",
        kinds - 1, ", got ", kind_a, " and ", kind_b);
  const auto number = static_cast<std::int64_t>(what);
  if (number % 2 == 1) return is_held_out_relation(kind_b, inverse_of(what), kind_a);
  return (kind_a + 3 * kind_b + 2 * number + 5) % kinds == 0;  // one kind for each, both ways
}

Scene scene_at(const SceneOptions& options, std::uint64_t seed, std::int64_t index) {
  check_options(options);
  check(index >= 0 && index < SceneNumbers::most_scenes,
        "scenes: index: expected at least 0 and below 2^44, got ", index);
  const SceneNovelty novelty = scene_novelty(options.split);
  SceneNumbers numbers(seed, index);
  Scene scene;
  while (!choose_scene(scene, options, novelty, numbers)) {
  }
  choose_background(scene, numbers);
  scene.wording = choose_scene_wording(novelty.wordings, numbers.next());
  choose_what_is_said(scene, options, numbers);
  return scene;
}

Shape scene_object_at(const Scene& scene, const SceneObject& object, double seconds) {
  check(object.group >= 0 && object.group < std::ssize(scene.groups),
        "scenes: object: expected a group from 0 to ", std::ssize(scene.groups) - 1, ", got ", object.group);
  constexpr auto two_pi = 2 * exact::pi;
  const SceneGroup& group = scene.groups[static_cast<std::size_t>(object.group)];
  const double turns = group.phase + group.rate * seconds;
  const auto way =
      static_cast<float>(group.reach * exact::direction(two_pi * (turns - std::floor(turns))).sine);
  Shape shape;
  shape.kind = object.kind;
  shape.hue = object.hue;
  shape.x = object.x + (group.motion == SceneMotion::sway ? way : 0.0f);
  shape.y = object.y + (group.motion == SceneMotion::bob ? way : 0.0f);
  shape.radius = object.radius;
  shape.angle = static_cast<float>(two_pi) * object.angle;
  std::copy(std::begin(object.colour), std::end(object.colour), std::begin(shape.colour));
  return shape;
}

void draw_scene(const Scene& scene, const ClipFormat& format, std::span<std::uint8_t> out) {
  check_clip_format("draw_scene", format, std::ssize(out));
  const std::int64_t frame = format.width * format.height;
  Layers layers(scene.background, format.width, format.height);
  for (std::int64_t f = 0; f < format.frames; ++f) {
    const double seconds = static_cast<double>(format.first + f) / format.fps;
    if (f > 0) layers.clear();
    for (std::size_t i = scene.objects.size(); i-- > 0;)
      layers.add(scene_object_at(scene, scene.objects[i], seconds));
    layers.put(out.data() + f * frame, format.frames * frame);
  }
}

SceneOptions scene_options_of(const DataConfig& config) {
  SceneOptions options = config.scenes;
  options.split = config.sprites.split;
  return options;
}

std::shared_ptr<const Dataset> make_scenes(const DataConfig& config, std::uint64_t seed, std::int64_t size,
                                           std::int64_t first) {
  check_picture_size(config);
  check_clip_length(config);
  check(size >= 0 && first >= 0, "scenes: size and first: expected at least 0, got ", size, " and ", first);
  check(!config.flip, "data: flip: expected false where kind is scenes: captions say left and right");
  const SceneOptions options = scene_options_of(config);
  check_options(options);
  scene_novelty(options.split);
  return std::make_shared<Scenes>(config, seed, size, first);
}

}  // namespace pom::data
