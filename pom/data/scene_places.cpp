// Places are tried until one fits all that are taken: the rules are tests, and what passes them is as varied
// as they allow. The same bytes on every machine, as in sprites.cpp.
#include "pom/data/scene_places.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "pom/data/exact_math.h"
#include "pom/data/uniform.h"

namespace pom::data {
namespace {

constexpr float widest = 1.09f;        // no shape reaches farther, in radii
constexpr float least_gap = 0.04f;     // between what does not overlap
constexpr float least_margin = 0.02f;  // to the sides of the picture
constexpr float clear_ratio = 1.5f;    // of the distances along a relation's axis and across it
constexpr float least_covered = 0.12f, most_covered = 0.35f;
constexpr int most_rounds = 150, most_tries = 12;

// Radii of the objects of a scene of two, three and four.
struct Radii {
  float least, most;
};
constexpr std::array<Radii, 3> radii = {Radii{0.16f, 0.20f}, Radii{0.13f, 0.17f}, Radii{0.13f, 0.15f}};
constexpr float overlapping_radii = 1.1f;  // so much larger where two share a place

bool overlaps(Relation what) {
  return what == Relation::in_front_of || what == Relation::behind;
}

// How far the members of a group move to each side, and up and down.
struct Sway {
  float x, y;
};

Sway sway_of(const SceneGroup& group) {
  return {group.motion == SceneMotion::sway ? group.reach : 0.0f,
          group.motion == SceneMotion::bob ? group.reach : 0.0f};
}

// How far b is from a, and how much of that their motions may take or add.
struct Offset {
  float x, y;
  Sway sway;
  float reaches;  // of both
};

Offset offset_of(const Scene& scene, const SceneObject& a, const SceneObject& b) {
  const Sway of_a = sway_of(scene.groups[static_cast<std::size_t>(a.group)]);
  const Sway of_b = sway_of(scene.groups[static_cast<std::size_t>(b.group)]);
  return {b.x - a.x, b.y - a.y, {of_a.x + of_b.x, of_a.y + of_b.y}, widest * (a.radius + b.radius)};
}

bool has_gap(const Offset& o) {
  const float x = std::max(std::fabs(o.x) - o.sway.x, 0.0f), y = std::max(std::fabs(o.y) - o.sway.y, 0.0f);
  const float distance = o.reaches + least_gap;
  return x * x + y * y >= distance * distance;
}

// "a … b" at every moment.
bool is_clear(Relation what, const Offset& o) {
  const bool upright = what == Relation::above || what == Relation::below;
  const bool towards = what == Relation::below || what == Relation::left_of;  // b has the larger coordinate
  const float to = upright ? o.y : o.x;
  const float along = (towards ? to : -to) - (upright ? o.sway.y : o.sway.x);
  const float across = std::fabs(upright ? o.x : o.y) + (upright ? o.sway.x : o.sway.y);
  return along >= o.reaches && along > clear_ratio * across;
}

const SceneRelation* relation_of(const Scene& scene, std::int64_t a, std::int64_t b) {
  for (const SceneRelation& relation : scene.relations)
    if ((relation.a == a && relation.b == b) || (relation.a == b && relation.b == a)) return &relation;
  return nullptr;
}

bool fits(const Scene& scene, const SceneObject& placed, const SceneObject& next) {
  const Offset offset = offset_of(scene, placed, next);
  const SceneRelation* relation =
      placed.group == next.group ? nullptr : relation_of(scene, placed.group, next.group);
  if (relation == nullptr) return has_gap(offset);
  const Relation what = relation->a == placed.group ? relation->what : inverse_of(relation->what);
  if (!overlaps(what)) return has_gap(offset) && is_clear(what, offset);
  const Shape one = scene_object_at(scene, placed, 0), other = scene_object_at(scene, next, 0);
  const float share = what == Relation::in_front_of ? covered_share(one, other) : covered_share(other, one);
  return share >= least_covered && share <= most_covered;
}

// The placed object that something is said of together with `next`, if any.
const SceneObject* partner_of(const Scene& scene, const SceneObject& next) {
  for (const SceneObject& placed : scene.objects)
    if (placed.group != next.group && relation_of(scene, placed.group, next.group) != nullptr) return &placed;
  return nullptr;
}

// Centres between which `next` is whole at every moment: from -x to x, from -y to y.
Sway room_of(const Scene& scene, const SceneObject& next) {
  const Sway sway = sway_of(scene.groups[static_cast<std::size_t>(next.group)]);
  const float room = 0.5f - least_margin - widest * next.radius;
  return {room - sway.x, room - sway.y};
}

// Where along an axis, in shares of the room, a group leaves room for what has to be on either side of it.
struct Share {
  float low, high;
};

Share share_of(const Scene& scene, std::int64_t group, bool upright) {
  bool below = false, above = false;  // or left and right: what is to be there
  for (const SceneRelation& relation : scene.relations) {
    if (relation.a != group && relation.b != group) continue;
    const Relation what = relation.a == group ? relation.what : inverse_of(relation.what);
    below |= what == (upright ? Relation::above : Relation::right_of);
    above |= what == (upright ? Relation::below : Relation::left_of);
  }
  if (below && above) return {-0.3f, 0.3f};
  return {below ? 0.0f : -1.0f, above ? 0.0f : 1.0f};
}

// A place where what is said of `next` and its partner may well hold.
void propose(const Scene& scene, const SceneObject* partner, const Sway& room, SceneObject& next,
             SceneNumbers& numbers) {
  const float u = numbers.next(), v = numbers.next();
  if (partner == nullptr) {
    const Share x = share_of(scene, next.group, false), y = share_of(scene, next.group, true);
    next.x = room.x * between(x.low, x.high, u);
    next.y = room.y * between(y.low, y.high, v);
    return;
  }
  const SceneRelation& relation = *relation_of(scene, partner->group, next.group);
  const Relation what = relation.a == partner->group ? relation.what : inverse_of(relation.what);
  if (overlaps(what)) {
    const float near = 0.9f * (partner->radius + next.radius);
    next.x = partner->x + between(-near, near, u);
    next.y = partner->y + between(-near, near, v);
    return;
  }
  // On the partner's side that the relation leaves to `next`, from where the two are apart to the edge.
  const bool upright = what == Relation::above || what == Relation::below;
  const float sign = what == Relation::below || what == Relation::left_of ? 1.0f : -1.0f;
  const float start = upright ? partner->y : partner->x, edge = upright ? room.y : room.x;
  const float along = between(widest * (partner->radius + next.radius), edge - sign * start, u);
  const float across = between(-along, along, v) / clear_ratio;
  next.x = partner->x + (upright ? across : sign * along);
  next.y = partner->y + (upright ? sign * along : across);
}

bool place_next(Scene& scene, SceneObject next, SceneNumbers& numbers) {
  const Sway room = room_of(scene, next);
  const SceneObject* partner = partner_of(scene, next);
  for (int i = 0; i < most_tries; ++i) {
    propose(scene, partner, room, next, numbers);
    if (std::fabs(next.x) > room.x || std::fabs(next.y) > room.y) continue;
    if (std::ranges::all_of(scene.objects, [&](const SceneObject& o) { return fits(scene, o, next); })) {
      scene.objects.push_back(next);
      return true;
    }
  }
  return false;
}

std::int64_t total_of(const Scene& scene) {
  std::int64_t total = 0;
  for (const SceneGroup& group : scene.groups) total += group.count;
  return total;
}

// What the members of a group have in common; of their places nothing.
SceneObject member_of(const Scene& scene, std::int64_t g, SceneNumbers& numbers) {
  const SceneGroup& group = scene.groups[static_cast<std::size_t>(g)];
  const auto [least, most] = radii[static_cast<std::size_t>(total_of(scene) - 2)];
  const bool larger = std::ranges::any_of(scene.relations, [](auto& r) { return overlaps(r.what); });
  SceneObject member{.group = g, .kind = group.kind, .hue = group.hue};
  member.radius = between(least, most, numbers.next()) * (larger ? overlapping_radii : 1.0f);
  const std::array<float, 3> colour = hue_colour(group.hue);
  for (std::size_t c = 0; c < 3; ++c)
    member.colour[c] = std::clamp(colour[c] + between(-0.03f, 0.03f, numbers.next()), 0.0f, 1.0f);
  return member;
}

// Small groups first: a large one finds its places around them more easily than they around it.
bool place_all(Scene& scene, SceneNumbers& numbers) {
  scene.objects.clear();
  for (std::int64_t count = 1; count <= 3; ++count)
    for (std::int64_t g = 0; g < std::ssize(scene.groups); ++g) {
      if (scene.groups[static_cast<std::size_t>(g)].count != count) continue;
      SceneObject member = member_of(scene, g, numbers);
      for (std::int64_t i = 0; i < count; ++i) {
        member.angle = between(-1.0f / 24, 1.0f / 24, numbers.next());
        if (!place_next(scene, member, numbers)) return false;
      }
    }
  return true;
}

// Who is behind another comes last.
void put_front_first(Scene& scene) {
  for (const SceneRelation& relation : scene.relations)
    if (overlaps(relation.what)) {
      const std::int64_t rear = relation.what == Relation::behind ? relation.a : relation.b;
      std::ranges::stable_partition(scene.objects, [&](const SceneObject& o) { return o.group != rear; });
    }
}

}  // namespace

bool place_objects(Scene& scene, SceneNumbers& numbers) {
  for (int round = 0; round < most_rounds; ++round)
    if (place_all(scene, numbers)) {
      put_front_first(scene);
      return true;
    }
  return false;
}

}  // namespace pom::data
