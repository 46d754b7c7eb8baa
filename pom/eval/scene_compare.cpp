// What of a scene a verdict confirms. Groups of a scene differ in their hues, so that relations are looked
// for between hues: what is in its place with another shape is still in its place.
#include <algorithm>
#include <cmath>
#include <map>

#include "pom/eval/scene_judge.h"

namespace pom::eval {
namespace {

using data::Relation;

// Each of `asked` is there at least as often.
template <class Key>
bool has_all(const std::map<Key, int>& asked, const std::map<Key, int>& there) {
  return std::ranges::all_of(asked, [&](const auto& entry) {
    const auto found = there.find(entry.first);
    return found != there.end() && found->second >= entry.second;
  });
}

template <class Key, class Things, class KeyOf>
std::map<Key, int> counted(const Things& things, KeyOf key_of) {
  std::map<Key, int> counts;
  for (const auto& thing : things) ++counts[key_of(thing)];
  return counts;
}

std::vector<std::size_t> of_hue(const SceneVerdict& verdict, std::int64_t hue) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < verdict.objects.size(); ++i)
    if (verdict.objects[i].hue == hue) found.push_back(i);
  return found;
}

// Between every two members.
bool relation_holds(const data::Scene& scene, const data::SceneRelation& relation,
                    const SceneVerdict& verdict) {
  const auto members = [&](std::int64_t group) {
    return of_hue(verdict, scene.groups[static_cast<std::size_t>(group)].hue);
  };
  const std::vector<std::size_t> a = members(relation.a), b = members(relation.b);
  if (a.empty() || b.empty()) return false;
  for (const std::size_t i : a)
    for (const std::size_t k : b)
      if (!holds(relation.what, verdict, i, k)) return false;
  return true;
}

bool in_front(const SceneVerdict& verdict, std::size_t a, std::size_t b) {
  constexpr double whole = 0.97, covers = 0.04;  // drawings: all of it, and 0.12 to 0.4
  if (verdict.objects[a].visible < whole) return false;
  return std::ranges::any_of(verdict.overlaps, [&](const FoundOverlap& overlap) {
    return overlap.front == a && overlap.back == b && overlap.share >= covers;
  });
}

}  // namespace

bool holds(Relation what, const SceneVerdict& verdict, std::size_t a, std::size_t b) {
  const double dx = verdict.objects[a].x - verdict.objects[b].x,
               dy = verdict.objects[a].y - verdict.objects[b].y;
  switch (what) {
    case Relation::above:
      return dy > std::abs(dx);
    case Relation::below:
      return -dy > std::abs(dx);
    case Relation::left_of:
      return -dx > std::abs(dy);
    case Relation::right_of:
      return dx > std::abs(dy);
    case Relation::in_front_of:
      return in_front(verdict, a, b);
    case Relation::behind:
      return in_front(verdict, b, a);
  }
  return false;
}

SceneAgreement compare(const data::Scene& scene, const SceneVerdict& verdict) {
  using Pair = std::pair<std::int64_t, std::int64_t>;
  std::vector<FoundObject> shapes;  // those that are one
  std::ranges::copy_if(verdict.objects, std::back_inserter(shapes), &FoundObject::fits);
  const auto kind = [](const auto& object) { return object.kind; };
  const auto hue = [](const auto& object) { return object.hue; };
  const auto both = [](const auto& object) { return Pair(object.kind, object.hue); };
  SceneAgreement agreement;
  agreement.objects =
      has_all(counted<std::int64_t>(scene.objects, kind), counted<std::int64_t>(shapes, kind));
  agreement.colours =
      has_all(counted<std::int64_t>(scene.objects, hue), counted<std::int64_t>(verdict.objects, hue));
  agreement.pairs = has_all(counted<Pair>(scene.objects, both), counted<Pair>(shapes, both));
  agreement.count = scene.objects.size() == verdict.objects.size();
  agreement.relations_asked = std::ssize(scene.relations);
  agreement.relations_right = std::ranges::count_if(
      scene.relations, [&](const auto& relation) { return relation_holds(scene, relation, verdict); });
  agreement.relations = agreement.relations_right == agreement.relations_asked;
  agreement.ground = !data::names_ground(scene.wording) || scene.ground == verdict.ground;
  agreement.fits = verdict.fits();
  return agreement;
}

}  // namespace pom::eval
