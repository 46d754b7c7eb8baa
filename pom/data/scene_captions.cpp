// Captions: several ways to say what a scene shows. Those that are held out of training use its words in
// other orders, so that nothing but the wording is new.
#include <array>
#include <string>
#include <string_view>

#include "pom/base/error.h"
#include "pom/data/scenes.h"

namespace pom::data {
namespace {

// Of group n: {n} "two green squares", {tn} "the green squares", {hn} "green", {ben} "are", {itn} "them".
// Of relation n, which leads to group n: {rn} says it from its first group, {in} from its second.
struct SceneWording {
  const char *one, *two;  // groups
  const char* fan;        // of three, where both relations are of the first
  const char* chain;      // of three, where the second relation is of the second
  bool far;               // "to the left of" and not "left of"
  bool held_out = false;
};

constexpr std::array scene_wordings = {
    SceneWording{"{0} over {ground}", "{0} {r1} {1} over {ground}", "{0} {r1} {1} and {r2} {2} over {ground}",
                 "{0} {r1} {1} that {be1} {r2} {2} over {ground}", false},
    SceneWording{"{0}", "{0} {r1} {1}", "{0} {r1} {1}, {r2} {2}", "{2} {i2} {1} that {be1} {i1} {0}", false},
    SceneWording{"on a {ground} background, {0}", "on a {ground} background, {0} {be0} {r1} {1}",
                 "on a {ground} background, {0} {be0} {r1} {1}; {t0} {be0} {r2} {2}",
                 "on a {ground} background, {0} {be0} {r1} {1}; {t1} {be1} {r2} {2}", true},
    SceneWording{"{0}, {ground} background", "{1} {i1} {0}, {ground} background",
                 "{1} {i1} {0} that {be0} {r2} {2}, {ground} background",
                 "{1} {i1} {0} and {r2} {2}, {ground} background", false},
    SceneWording{"only {0}", "{0} and {1}: {h0} {r1} {h1}",
                 "{0}, {1} and {2}: {h0} {r1} {h1}, {h0} {r2} {h2}",
                 "{0}, {1} and {2}: {h0} {r1} {h1}, {h1} {r2} {h2}", false},
    SceneWording{"there {be0} {0} on {ground}", "on {ground}: {0} with {1} {i1} {it0}",
                 "on {ground}: {0} with {1} {i1} {it0} and {2} {i2} {it0}",
                 "on {ground}: {1} with {0} {r1} {it1} and {2} {i2} {it1}", true},
    SceneWording{"nothing but {0}", "{r1} {1}, {0}", "{r1} {1} and {r2} {2}, {0}",
                 "{r2} {2}, {1}; {r1} {t1}, {0}", true},
    SceneWording{"over {ground}, only {0}", "over {ground}, {1} {be1} {i1} {0}",
                 "over {ground}, {1} {be1} {i1} {0}; {2} {be2} {i2} {t0}",
                 "over {ground}, {1} {be1} {i1} {0}; {2} {be2} {i2} {t1}", true, true},
    SceneWording{"there {be0} {0} on a {ground} background", "{h0} {r1} {h1} on {ground}: {1} and {0}",
                 "{h1} {i1} {h0}, {h2} {i2} {h0} on {ground}: {0}, {1} and {2}",
                 "{h1} {i1} {h0}, {h2} {i2} {h1} on {ground}: {0}, {1} and {2}", false, true},
    SceneWording{"there {be0} only {0}", "{0} that {be0} {r1} {1}",
                 "{0} that {be0} {r1} {1}, with {2} {i2} {it0}",
                 "{1} that {be1} {i1} {0}, with {2} {i2} {it1}", true, true},
};

constexpr std::array<const char*, 6> near_relations = {"above",    "below",       "left of",
                                                       "right of", "in front of", "behind"};
constexpr std::array<const char*, 6> far_relations = {"above",           "under",       "to the left of",
                                                      "to the right of", "in front of", "behind"};

std::string relation_text(Relation what, bool far) {
  return (far ? far_relations : near_relations)[static_cast<std::size_t>(what)];
}

std::string kind_text(const SceneGroup& group) {
  const std::string& name =
      group.said == SceneGroup::Said::hue ? "shape" : shape_names().at(static_cast<std::size_t>(group.kind));
  return group.count == 1 ? name : name + (name == "cross" ? "es" : "s");
}

const std::string& hue_text(const SceneGroup& group) {
  return hue_names().at(static_cast<std::size_t>(group.hue));
}

// "red star", "green squares"
std::string looks_text(const SceneGroup& group) {
  return (group.said == SceneGroup::Said::kind ? "" : hue_text(group) + " ") + kind_text(group);
}

// "a red star", "an orange ring", "two bobbing green squares".
std::string group_text(const SceneGroup& group) {
  const std::string looks = (group.motion == SceneMotion::sway  ? "swaying "
                             : group.motion == SceneMotion::bob ? "bobbing "
                                                                : "") +
                            looks_text(group);
  check(group.count >= 1 && group.count <= 3, "caption: count: expected 1 to 3, got ", group.count);
  constexpr std::array<const char*, 3> numbers = {"a ", "two ", "three "};
  const bool vowel = group.count == 1 && looks.starts_with("orange");
  return (vowel ? "an " : numbers[static_cast<std::size_t>(group.count - 1)]) + looks;
}

// What a mark stands for: its letters, then the number of a group or of the relation that leads to it.
std::string meaning_of(std::string_view mark, const Scene& scene, bool far) {
  if (mark == "ground") return ground_names().at(static_cast<std::size_t>(scene.ground));
  const auto number = static_cast<std::size_t>(mark.back() - '0');
  const std::string_view what = mark.substr(0, mark.size() - 1);
  if (what == "r") return relation_text(scene.relations.at(number - 1).what, far);
  if (what == "i") return relation_text(inverse_of(scene.relations.at(number - 1).what), far);
  const SceneGroup& group = scene.groups.at(number);
  if (what == "t") return "the " + looks_text(group);
  if (what == "h") return hue_text(group);
  if (what == "be") return group.count == 1 ? "is" : "are";
  if (what == "it") return group.count == 1 ? "it" : "them";
  return group_text(group);
}

std::string_view form_of(const SceneWording& wording, const Scene& scene) {
  if (scene.groups.size() == 1) return wording.one;
  if (scene.groups.size() == 2) return wording.two;
  return scene.relations.at(1).a == 0 ? wording.fan : wording.chain;
}

}  // namespace

std::int64_t scene_wording_count() {
  return std::ssize(scene_wordings);
}

bool is_held_out_scene_wording(std::int64_t wording) {
  check(wording >= 0 && wording < scene_wording_count(), "caption: wording: expected 0 to ",
        scene_wording_count() - 1, ", got ", wording);
  return scene_wordings[static_cast<std::size_t>(wording)].held_out;
}

bool names_ground(std::int64_t wording) {
  is_held_out_scene_wording(wording);  // checks it
  return std::string_view(scene_wordings[static_cast<std::size_t>(wording)].two).find("{ground}") !=
         std::string_view::npos;
}

bool refers_by_hue(const Scene& scene) {
  is_held_out_scene_wording(scene.wording);  // checks it
  return form_of(scene_wordings[static_cast<std::size_t>(scene.wording)], scene).find("{h") !=
         std::string_view::npos;
}

std::string scene_caption(const Scene& scene, std::int64_t number) {
  is_held_out_scene_wording(number);  // checks it
  const SceneWording& wording = scene_wordings[static_cast<std::size_t>(number)];
  std::string_view form = form_of(wording, scene);
  std::string text;
  for (std::size_t open = form.find('{'); open != std::string_view::npos; open = form.find('{')) {
    const std::size_t close = form.find('}');
    text += form.substr(0, open);
    text += meaning_of(form.substr(open + 1, close - open - 1), scene, wording.far);
    form.remove_prefix(close + 1);
  }
  return text.append(form);
}

std::string scene_caption(const Scene& scene) {
  return scene_caption(scene, scene.wording);
}

}  // namespace pom::data
