// Drawings of scenes that are wrong on purpose, for the tests of their judge and for its figures.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/empty.h>

#include "pom/base/noise.h"
#include "pom/data/scenes.h"

namespace pom::eval {

inline at::Tensor drawn_scene(const data::Scene& scene, std::int64_t side) {
  at::Tensor picture = at::empty({3, side, side}, at::kByte);
  data::draw_scene(scene, {.width = side, .height = side, .frames = 1},
                   {picture.data_ptr<std::uint8_t>(), static_cast<std::size_t>(picture.numel())});
  return picture;
}

// Uniform numbers of a case.
class Chance {
 public:
  explicit Chance(std::uint64_t seed) : key_{seed, noise_for::test, 1} {}
  float next() {
    float u = 0;
    fill_uniform(&u, 1, key_, place_++);
    return u;
  }
  std::size_t below(std::size_t n) {
    return std::min(n - 1, static_cast<std::size_t>(next() * static_cast<float>(n)));
  }

 private:
  NoiseKey key_;
  std::int64_t place_ = 0;
};

// ---- what is wrong with a scene

inline void paint(data::SceneObject& object, std::int64_t hue) {
  const std::array<float, 3> colour = data::hue_colour(hue);
  object.hue = hue;
  std::copy(colour.begin(), colour.end(), object.colour);
}

// A hue that neither the ground nor a group has.
inline std::int64_t new_hue(const data::Scene& scene, Chance& chance) {
  for (;;) {
    const auto hue = static_cast<std::int64_t>(chance.below(data::hue_names().size()));
    const bool taken = std::ranges::any_of(scene.groups, [&](const auto& g) { return g.hue == hue; });
    const std::string& ground = data::ground_names()[static_cast<std::size_t>(scene.ground)];
    if (!taken && data::hue_names()[static_cast<std::size_t>(hue)] != ground) return hue;
  }
}

inline bool swap_hue(data::Scene& scene, Chance& chance) {
  paint(scene.objects[chance.below(scene.objects.size())], new_hue(scene, chance));
  return true;
}

// Two groups exchange their hues: all shapes and all colours are there.
inline bool exchange_hues(data::Scene& scene, Chance&) {
  if (scene.groups.size() < 2 || scene.groups[0].kind == scene.groups[1].kind) return false;
  const std::int64_t a = scene.groups[0].hue, b = scene.groups[1].hue;
  for (data::SceneObject& object : scene.objects)
    if (object.group < 2) paint(object, object.hue == a ? b : a);
  return true;
}

// Seen in a mirror, or what is in front comes behind.
inline bool swap_relation(data::Scene& scene, Chance&) {
  if (scene.relations.empty()) return false;
  const data::Relation what = scene.relations.front().what;
  const bool upright = what == data::Relation::above || what == data::Relation::below,
             level = what == data::Relation::left_of || what == data::Relation::right_of;
  if (!upright && !level) std::ranges::reverse(scene.objects);
  for (data::SceneObject& object : scene.objects) {
    if (upright) object.y = -object.y;
    if (level) object.x = -object.x;
  }
  return true;
}

inline bool drop_object(data::Scene& scene, Chance& chance) {
  scene.objects.erase(scene.objects.begin() + static_cast<std::ptrdiff_t>(chance.below(scene.objects.size())));
  return true;
}

// Another one where there is room; of a hue that is there, or of a new one.
inline bool add_object(data::Scene& scene, Chance& chance) {
  data::SceneObject more = scene.objects[chance.below(scene.objects.size())];
  more.radius = 0.12f;
  more.kind = static_cast<std::int64_t>(chance.below(data::shape_names().size()));
  if (chance.next() < 0.5f) paint(more, new_hue(scene, chance));
  for (int attempt = 0; attempt < 400; ++attempt) {
    more.x = 0.7f * (chance.next() - 0.5f), more.y = 0.7f * (chance.next() - 0.5f);
    const bool free = std::ranges::all_of(scene.objects, [&](const data::SceneObject& o) {
      return std::hypot(o.x - more.x, o.y - more.y) > 1.09f * (o.radius + more.radius) + 0.04f;
    });
    if (!free) continue;
    scene.objects.push_back(more);
    return true;
  }
  return false;
}

inline std::int64_t kind_named(const std::string& name) {
  return std::ranges::find(data::shape_names(), name) - data::shape_names().begin();
}

inline bool swap_kind(data::Scene& scene, Chance& chance) {
  data::SceneObject& object = scene.objects[chance.below(scene.objects.size())];
  const std::size_t kinds = data::shape_names().size();
  object.kind = (object.kind + 1 + static_cast<std::int64_t>(chance.below(kinds - 1))) %
                static_cast<std::int64_t>(kinds);
  return true;
}

// The nearest two.
inline bool swap_circle_and_hexagon(data::Scene& scene, Chance&) {
  const std::int64_t circle = kind_named("circle"), hexagon = kind_named("hexagon");
  for (data::SceneObject& object : scene.objects)
    if (object.kind == circle || object.kind == hexagon) {
      object.kind = object.kind == circle ? hexagon : circle;
      return true;
    }
  return false;
}

// ---- what is wrong with a picture

struct Window {
  std::int64_t left, top, right, bottom;  // pixels around an object
};

inline Window window_of(const data::SceneObject& object, std::int64_t side) {
  const auto unit = static_cast<float>(side);
  const float reach = 1.09f * object.radius * unit + 2;
  const auto at = [&](float v) { return std::clamp<std::int64_t>(std::llround(v), 0, side); };
  const float x = (object.x + 0.5f) * unit, y = (0.5f - object.y) * unit;
  return {at(x - reach), at(y - reach), at(x + reach), at(y + reach)};
}

// An object that is not covered by another.
inline const data::SceneObject& front_one(const data::Scene& scene) {
  return scene.objects.front();
}

// As if out of focus: means over about an eighth of the picture, twice.
inline at::Tensor blur_object(const data::Scene& scene, std::int64_t side) {
  at::Tensor picture = drawn_scene(scene, side);
  const Window w = window_of(front_one(scene), side);
  const std::int64_t half = std::max<std::int64_t>(1, side / 24);
  at::Tensor soft = picture.to(at::kFloat).unsqueeze(0);
  for (int i = 0; i < 2; ++i) soft = at::avg_pool2d(soft, 2 * half + 1, 1, half, false, false);
  const auto part = [&](const at::Tensor& t) {
    return t.narrow(1, w.top, w.bottom - w.top).narrow(2, w.left, w.right - w.left);
  };
  part(picture).copy_(part(soft[0]));
  return picture;
}

// Its right half was never drawn.
inline at::Tensor halve_object(const data::Scene& scene, std::int64_t side) {
  at::Tensor picture = drawn_scene(scene, side);
  data::Scene without = scene;
  without.objects.erase(without.objects.begin());
  const Window w = window_of(front_one(scene), side);
  const std::int64_t middle = (w.left + w.right) / 2;
  const auto part = [&](const at::Tensor& t) {
    return t.narrow(1, w.top, w.bottom - w.top).narrow(2, middle, w.right - middle);
  };
  part(picture).copy_(part(drawn_scene(without, side)));
  return picture;
}

// ---- all of them

struct Mistake {
  const char* name;
  bool (*of_scene)(data::Scene&, Chance&);                     // false: not with this one
  at::Tensor (*of_picture)(const data::Scene&, std::int64_t);  // either this one or that
};

inline const std::vector<Mistake>& mistakes() {
  static const std::vector<Mistake> all = {{"another hue", swap_hue, nullptr},
                                           {"hues exchanged", exchange_hues, nullptr},
                                           {"another relation", swap_relation, nullptr},
                                           {"one missing", drop_object, nullptr},
                                           {"one more", add_object, nullptr},
                                           {"another shape", swap_kind, nullptr},
                                           {"circle and hexagon", swap_circle_and_hexagon, nullptr},
                                           {"blurred", nullptr, blur_object},
                                           {"half drawn", nullptr, halve_object}};
  return all;
}

}  // namespace pom::eval
