// Tests of scenes: always the same bytes, one scene at any size, relations that can be seen at every moment,
// nothing of what is held out in training, and captions that say what is there.
#include "pom/data/scenes.h"

#include "tests/data/support.h"
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "pom/io/sha256.h"

namespace pom::data {
namespace {

using Pixels = std::vector<std::uint8_t>;

constexpr ClipFormat picture = {.width = 64, .height = 64, .frames = 1};

Pixels drawn(const Scene& scene, const ClipFormat& format) {
  Pixels pixels(static_cast<std::size_t>(3 * format.frames * format.width * format.height));
  draw_scene(scene, format, pixels);
  return pixels;
}

// Frame f as a picture (3, H, W).
Pixels frame_of(const Pixels& clip, const ClipFormat& format, std::int64_t f) {
  const auto pixels = static_cast<std::size_t>(format.width * format.height);
  Pixels frame;
  for (std::int64_t c = 0; c < 3; ++c) {
    const auto* plane = clip.data() + static_cast<std::size_t>(c * format.frames + f) * pixels;
    frame.insert(frame.end(), plane, plane + pixels);
  }
  return frame;
}

std::string hash(const Pixels& pixels) {
  io::Sha256 sha;
  sha.update(std::as_bytes(std::span(pixels)));
  return sha.hex();
}

const std::vector<std::string> splits = {"training", "new_pairs", "new_relations", "new_wordings", "new_all"};

SceneOptions of_split(const std::string& split) {
  return {.split = split};
}

bool overlaps(Relation what) {
  return what == Relation::in_front_of || what == Relation::behind;
}

std::vector<Shape> members(const Scene& scene, std::int64_t group, double seconds) {
  std::vector<Shape> shapes;
  for (const SceneObject& object : scene.objects)
    if (object.group == group) shapes.push_back(scene_object_at(scene, object, seconds));
  return shapes;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) {
    while (!word.empty() && std::string(",:;").find(word.back()) != std::string::npos) word.pop_back();
    words.push_back(word);
  }
  return words;
}

// The bytes of scenes are a promise, as those of shapes are.
TEST(Scenes, BytesNeverChange) {
  io::Sha256 all, captions;
  for (std::int64_t i = 0; i < 300; ++i) {
    const Scene scene = scene_at({}, 7, i);
    const Pixels pixels = drawn(scene, picture);
    all.update(std::as_bytes(std::span(pixels)));
    const std::string caption = scene_caption(scene);
    captions.update(std::as_bytes(std::span(caption)));
  }
  EXPECT_EQ(all.hex(), "b62668e5295903eed9ef190136fa2e1edddade09210cb795d111083e239183f2");
  EXPECT_EQ(captions.hex(), "7900b90a99bf40291e6285aacfbdad11711575700a478278f0aa8d630905c88e");
  const SceneOptions far = {.split = "new_all", .swaying = 1};
  EXPECT_EQ(hash(drawn(scene_at(far, ~std::uint64_t{0}, std::int64_t{1} << 40),
                       {.width = 48, .height = 27, .frames = 5, .fps = 29.97, .first = 123456789})),
            "fd5714282cbf514dc5b1129a2b3da4974bd3e8cc92bcf094a67aa534a8a50af5");
}

TEST(Scenes, AreTheSameFromAnyThread) {
  const auto scenes = make_scenes({.kind = "scenes", .size = {24, 24}, .frames = 1}, 3);
  std::vector<Pixels> alone(64), together(64);
  for (std::int64_t i = 0; i < 64; ++i)
    alone[static_cast<std::size_t>(i)] = bytes_of(scenes->get(i, 0).picture);
  std::vector<std::jthread> threads;
  for (std::int64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::int64_t i = 63 - t; i >= 0; i -= 4)
        together[static_cast<std::size_t>(i)] = bytes_of(scenes->get(i, 0).picture);
    });
  threads.clear();
  EXPECT_EQ(alone, together);
  EXPECT_EQ(std::set(alone.begin(), alone.end()).size(), 64u);
}

// A pixel of a small picture is the mean of those of a large one that it covers, but for soft edges.
TEST(Scenes, AnySizeShowsTheSameScene) {
  for (std::int64_t i = 0; i < 20; ++i) {
    const Scene scene = scene_at({}, 5, i);
    const Pixels small = drawn(scene, {.width = 32, .height = 32, .frames = 1});
    const Pixels large = drawn(scene, {.width = 128, .height = 128, .frames = 1});
    double error = 0;
    for (std::size_t p = 0; p < small.size(); ++p) {
      const std::size_t channel = p / 1024, row = p % 1024 / 32, column = p % 32;
      int sum = 0;
      for (std::size_t dy = 0; dy < 4; ++dy)
        for (std::size_t dx = 0; dx < 4; ++dx)
          sum += large[(channel * 128 + 4 * row + dy) * 128 + 4 * column + dx];
      error += std::abs(sum / 16.0 - small[p]);
    }
    EXPECT_LT(error / static_cast<double>(small.size()), 1.0) << scene_caption(scene);
  }
}

// Of a wide picture the middle square holds what a square picture does.
TEST(Scenes, WidePicturesHaveTheSceneInTheMiddle) {
  Scene scene = scene_at({}, 5, 3);
  scene.background.background = 0;
  const Pixels square = drawn(scene, {.width = 32, .height = 32, .frames = 1});
  const Pixels wide = drawn(scene, {.width = 64, .height = 32, .frames = 1});
  for (std::size_t row = 0; row < 96; ++row)
    ASSERT_TRUE(std::equal(square.begin() + static_cast<std::ptrdiff_t>(32 * row),
                           square.begin() + static_cast<std::ptrdiff_t>(32 * row + 32),
                           wide.begin() + static_cast<std::ptrdiff_t>(64 * row + 16)));
}

TEST(Scenes, HoldTwoToFourObjectsInTheirGroups) {
  for (std::int64_t i = 0; i < 2000; ++i) {
    const Scene scene = scene_at({}, 1, i);
    ASSERT_GE(scene.objects.size(), 2u);
    ASSERT_LE(scene.objects.size(), 4u);
    ASSERT_EQ(scene.relations.size() + 1, scene.groups.size());
    const bool fan = scene.relations.size() == 2 && scene.relations[1].a == 0;
    ASSERT_FALSE(fan && scene.relations[0].what == scene.relations[1].what);
    std::set<std::int64_t> hues;
    for (std::int64_t g = 0; g < std::ssize(scene.groups); ++g) {
      const SceneGroup& group = scene.groups[static_cast<std::size_t>(g)];
      ASSERT_EQ(std::ssize(members(scene, g, 0)), group.count);
      hues.insert(group.hue);
    }
    ASSERT_EQ(hues.size(), scene.groups.size());
    for (const SceneObject& object : scene.objects) {
      const SceneGroup& group = scene.groups[static_cast<std::size_t>(object.group)];
      ASSERT_TRUE(object.kind == group.kind && object.hue == group.hue);
      ASSERT_GE(object.radius, 0.13f);
      ASSERT_LT(std::max(std::abs(object.x), std::abs(object.y)) + 1.09f * object.radius, 0.481f);
    }
  }
}

void expect_clear(const SceneRelation& relation, const Shape& a, const Shape& b, const std::string& caption) {
  const bool upright = relation.what == Relation::above || relation.what == Relation::below;
  const bool a_is_lower = relation.what == Relation::below || relation.what == Relation::left_of;
  const double along = (upright ? a.y - b.y : a.x - b.x) * (a_is_lower ? -1 : 1);
  const double across = std::abs(upright ? a.x - b.x : a.y - b.y);
  ASSERT_GT(along, 1.08 * (a.radius + b.radius)) << caption;
  ASSERT_GT(along, 1.499 * across) << caption;
}

// At every moment of a clip: what is said, and no overlap that is not.
void expect_relations(const Scene& scene, double seconds) {
  const std::string caption = scene_caption(scene);
  std::set<std::pair<std::int64_t, std::int64_t>> overlapping;
  for (const SceneRelation& relation : scene.relations) {
    if (overlaps(relation.what)) overlapping.insert(std::minmax(relation.a, relation.b));
    for (const Shape& a : members(scene, relation.a, seconds))
      for (const Shape& b : members(scene, relation.b, seconds)) {
        if (!overlaps(relation.what)) {
          expect_clear(relation, a, b, caption);
          continue;
        }
        const bool front = relation.what == Relation::in_front_of;
        const float share = front ? covered_share(a, b) : covered_share(b, a);
        ASSERT_TRUE(share >= 0.12f && share <= 0.35f) << share << " " << caption;
      }
  }
  for (std::size_t i = 0; i < scene.objects.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      const SceneObject &one = scene.objects[i], &other = scene.objects[j];
      if (overlapping.contains(std::minmax(one.group, other.group))) continue;
      const Shape a = scene_object_at(scene, one, seconds), b = scene_object_at(scene, other, seconds);
      ASSERT_GT(std::hypot(a.x - b.x, a.y - b.y) - 1.09 * (a.radius + b.radius), 0.0399) << caption;
    }
}

TEST(Scenes, RelationsCanBeSeen) {
  for (std::int64_t i = 0; i < 2000; ++i) expect_relations(scene_at({}, 2, i), 0);
}

TEST(Scenes, RelationsHoldWhileThingsMove) {
  int moving = 0;
  for (std::int64_t i = 0; i < 300; ++i) {
    const Scene scene = scene_at({.swaying = 0.8}, 4, i);
    for (int f = 0; f < 24; ++f) expect_relations(scene, f / 8.0);
    for (const SceneGroup& group : scene.groups) moving += group.motion != SceneMotion::stay ? 1 : 0;
    const ClipFormat format = {.width = 32, .height = 32, .frames = 9};
    const Pixels clip = drawn(scene, format);
    const Pixels first = frame_of(clip, format, 0);
    bool moves = false;
    for (std::int64_t f = 1; f < 9; ++f) moves |= frame_of(clip, format, f) != first;
    ASSERT_EQ(moves, std::ranges::any_of(scene.groups, [](auto& g) { return g.reach > 0; })) << i;
    ASSERT_EQ(first, drawn(scene, {.width = 32, .height = 32, .frames = 1}));
  }
  EXPECT_GT(moving, 200);
}

// The one in front is whole: where it covers the other, the picture has its colour.
TEST(Scenes, WhatIsInFrontCoversTheOther) {
  int seen = 0;
  for (std::int64_t i = 0; i < 400; ++i) {
    Scene scene = scene_at({.objects = 2}, 6, i);
    if (scene.relations.empty() || !overlaps(scene.relations[0].what)) continue;
    ++seen;
    const SceneRelation& relation = scene.relations[0];
    const std::int64_t front = relation.what == Relation::in_front_of ? relation.a : relation.b;
    ASSERT_EQ(scene.objects[0].group, front);
    Scene alone = scene;
    alone.objects.resize(1);
    const Pixels both = drawn(scene, picture), one = drawn(alone, picture);
    const auto has_colour = [&](const Pixels& pixels, std::size_t p, float within) {
      for (std::size_t c = 0; c < 3; ++c)
        if (std::abs(pixels[4096 * c + p] - scene.objects[0].colour[c] * 255) > within) return false;
      return true;
    };
    int whole = 0;
    for (std::size_t p = 0; p < 4096; ++p)
      if (has_colour(one, p, 0.6f)) {
        ++whole;
        ASSERT_TRUE(has_colour(both, p, 4)) << scene_caption(scene);
      }
    ASSERT_GT(whole, 50);
  }
  EXPECT_GT(seen, 50);
}

TEST(Scenes, HeldOutRelationsAreOneOfEachKindBothWays) {
  for (const Relation what : {Relation::above, Relation::left_of, Relation::in_front_of})
    for (std::int64_t a = 0; a < 10; ++a) {
      int after = 0, before = 0;
      for (std::int64_t b = 0; b < 10; ++b) {
        after += is_held_out_relation(a, what, b) ? 1 : 0;
        before += is_held_out_relation(b, what, a) ? 1 : 0;
        EXPECT_EQ(is_held_out_relation(a, what, b), is_held_out_relation(b, inverse_of(what), a));
      }
      EXPECT_EQ(after, 1);
      EXPECT_EQ(before, 1);
    }
}

TEST(Scenes, SplitsKeepApart) {
  for (const std::string& split : splits) {
    const bool all = split == "new_all", pairs = all || split == "new_pairs",
               relations = all || split == "new_relations", wordings = all || split == "new_wordings";
    std::set<std::pair<std::int64_t, std::int64_t>> seen;
    std::set<std::int64_t> worded;
    for (std::int64_t i = 0; i < 3000; ++i) {
      const Scene scene = scene_at(of_split(split), 12, i);
      ASSERT_EQ(is_held_out_scene_wording(scene.wording), wordings) << split;
      worded.insert(scene.wording);
      for (const SceneGroup& group : scene.groups) {
        ASSERT_EQ(is_held_out_pair(group.hue, group.kind), pairs) << split;
        seen.emplace(group.hue, group.kind);
      }
      ASSERT_TRUE(!relations || !scene.relations.empty());
      for (const auto& [a, b, what] : scene.relations)
        ASSERT_EQ(is_held_out_relation(scene.groups[static_cast<std::size_t>(a)].kind, what,
                                       scene.groups[static_cast<std::size_t>(b)].kind),
                  relations)
            << split;
    }
    EXPECT_EQ(seen.size(), pairs ? 8u : 72u) << split;
    EXPECT_EQ(worded.size(), wordings ? 3u : 7u) << split;
  }
}

TEST(Scenes, EverythingOccurs) {
  std::map<std::string, int> count;
  constexpr int scenes = 10000;
  for (std::int64_t i = 0; i < scenes; ++i) {
    const Scene scene = scene_at({}, 77, i);
    ++count["ground " + ground_names()[static_cast<std::size_t>(scene.ground)]];
    ++count["objects " + std::to_string(scene.objects.size())];
    ++count["groups " + std::to_string(scene.groups.size())];
    for (const SceneRelation& relation : scene.relations)
      ++count[relation_names()[static_cast<std::size_t>(relation.what)]];
    if (scene.relations.size() == 2) ++count[scene.relations[1].a == 0 ? "fan" : "chain"];
    for (const SceneGroup& group : scene.groups) {
      ++count["hue " + std::to_string(group.hue)];
      ++count["kind " + std::to_string(group.kind)];
    }
  }
  for (const char* objects : {"objects 2", "objects 3", "objects 4"}) EXPECT_GT(count[objects], scenes / 5);
  EXPECT_GT(count["groups 1"], scenes / 20);
  EXPECT_GT(count["fan"], scenes / 7);
  EXPECT_GT(count["chain"], scenes / 7);
  for (const std::string& relation : relation_names()) EXPECT_GT(count[relation], scenes / 20) << relation;
  for (const std::string& ground : ground_names())
    EXPECT_GT(count["ground " + ground], scenes / 10) << ground;
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(count["hue " + std::to_string(i)], 2800, 500) << i;
  for (int i = 0; i < 10; ++i) EXPECT_NEAR(count["kind " + std::to_string(i)], 2250, 500) << i;
}

TEST(Scenes, OptionsHold) {
  for (std::int64_t i = 0; i < 500; ++i) {
    ASSERT_EQ(scene_at({.objects = 2}, 1, i).objects.size(), 2u);
    ASSERT_LE(scene_at({.objects = 3}, 1, i).objects.size(), 3u);
    for (const SceneGroup& group : scene_at({}, 1, i).groups) ASSERT_EQ(group.motion, SceneMotion::stay);
  }
}

TEST(Scenes, StandOutFromTheirGround) {
  for (int i = 0; i < 3000; ++i) {
    const Scene scene = scene_at({}, 55, i);
    for (const SceneObject& object : scene.objects)
      for (const auto& tint : scene.background.ground) {
        double squares = 0;
        for (int c = 0; c < 3; ++c) squares += std::pow(object.colour[c] - tint[c], 2);
        ASSERT_GT(std::sqrt(squares), 0.3) << i << " " << scene_caption(scene);
      }
  }
}

TEST(SceneCaptions, AreThese) {
  Scene scene;
  scene.groups = {{.kind = 3, .hue = 0}, {.kind = 5, .hue = 5}, {.kind = 1, .hue = 3, .count = 2}};
  scene.relations = {{0, 1, Relation::above}, {0, 2, Relation::left_of}};
  const std::vector<std::string> fan = {
      "a red star above a blue ring and left of two green squares over black",
      "a red star above a blue ring, left of two green squares",
      "on a black background, a red star is above a blue ring; the red star is to the left of two green "
      "squares",
      "a blue ring below a red star that is left of two green squares, black background",
      "a red star, a blue ring and two green squares: red above blue, red left of green",
      "on black: a red star with a blue ring under it and two green squares to the right of it",
      "above a blue ring and to the left of two green squares, a red star",
      "over black, a blue ring is under a red star; two green squares are to the right of the red star",
      "blue below red, green right of red on black: a red star, a blue ring and two green squares",
      "a red star that is above a blue ring, with two green squares to the right of it"};
  ASSERT_EQ(scene_wording_count(), std::ssize(fan));
  for (std::size_t w = 0; w < fan.size(); ++w)
    EXPECT_EQ(scene_caption(scene, static_cast<std::int64_t>(w)), fan[w]);
  scene.relations[1].a = 1;
  EXPECT_EQ(scene_caption(scene),
            "a red star above a blue ring that is left of two green squares over black");
  EXPECT_EQ(scene_caption(scene, 1), "two green squares right of a blue ring that is below a red star");
  EXPECT_EQ(scene_caption(scene, 6),
            "to the left of two green squares, a blue ring; above the blue ring, a red star");
  scene.groups = {{.kind = 6, .hue = 1, .count = 3, .motion = SceneMotion::bob}, {.kind = 0, .hue = 1}};
  scene.relations = {{0, 1, Relation::behind}};
  EXPECT_EQ(scene_caption(scene, 3),
            "an orange circle in front of three bobbing orange crosses, black background");
  scene.groups.pop_back();
  EXPECT_EQ(scene_caption(scene, 5), "there are three bobbing orange crosses on black");
}

TEST(SceneCaptions, NameExactlyWhatIsThere) {
  for (const std::string& split : splits)
    for (std::int64_t i = 0; i < 500; ++i) {
      const Scene scene = scene_at({.split = split, .swaying = 0.3}, 31, i);
      const std::string caption = scene_caption(scene);
      const std::vector<std::string> list = words_of(caption);
      const std::set<std::string> words(list.begin(), list.end());
      ASSERT_EQ(caption.find('{'), std::string::npos) << caption;
      std::set<std::string> hues, expected_hues, kinds, expected_kinds;
      for (const std::string& word : words) {
        if (std::ranges::count(hue_names(), word) > 0) hues.insert(word);
        for (const std::string& kind : shape_names())
          if (word == kind || word == kind + "s" || word == kind + "es") kinds.insert(word);
      }
      for (const SceneGroup& group : scene.groups) {
        const std::string kind = shape_names()[static_cast<std::size_t>(group.kind)];
        expected_hues.insert(hue_names()[static_cast<std::size_t>(group.hue)]);
        expected_kinds.insert(group.count == 1 ? kind : kind == "cross" ? "crosses" : kind + "s");
      }
      const std::string ground = ground_names()[static_cast<std::size_t>(scene.ground)];
      ASSERT_EQ(words.contains(ground), names_ground(scene.wording)) << caption;
      hues.erase(ground);
      ASSERT_EQ(hues, expected_hues) << caption;
      ASSERT_EQ(kinds, expected_kinds) << caption;
      ASSERT_EQ(words.contains("swaying"),
                std::ranges::any_of(scene.groups, [](auto& g) { return g.motion == SceneMotion::sway; }));
      const auto two = std::ranges::count(list, "two"), three = std::ranges::count(list, "three");
      ASSERT_EQ(two, std::ranges::count(scene.groups, 2, &SceneGroup::count)) << caption;
      ASSERT_EQ(three, std::ranges::count(scene.groups, 3, &SceneGroup::count)) << caption;
    }
}

// The same scenes as without it; a group keeps its colour or its shape, and "…: red above blue" its colours.
TEST(SceneCaptions, LeaveOutWhatTheyMay) {
  SceneOptions vague;
  vague.vague = 0.5;
  std::int64_t all = 0, of_hue = 0, of_kind = 0;
  for (std::int64_t i = 0; i < 400; ++i) {
    const Scene scene = scene_at(vague, 3, i), whole = scene_at({}, 3, i);
    ASSERT_EQ(whole.groups.size(), scene.groups.size());
    for (std::size_t g = 0; g < scene.groups.size(); ++g) {
      const SceneGroup& group = scene.groups[g];
      EXPECT_EQ(group.kind, whole.groups[g].kind);
      EXPECT_EQ(group.hue, whole.groups[g].hue);
      const std::string kind = shape_names()[static_cast<std::size_t>(group.kind)],
                        hue = hue_names()[static_cast<std::size_t>(group.hue)];
      const bool no_kind = group.said == SceneGroup::Said::hue, no_hue = group.said == SceneGroup::Said::kind;
      const std::string said = no_kind ? hue + " shape" : no_hue ? kind : hue + " " + kind;
      EXPECT_NE(scene_caption(scene).find(said), std::string::npos) << scene_caption(scene);
      EXPECT_FALSE(no_hue && refers_by_hue(scene)) << scene_caption(scene);
      const auto alike = [&](const SceneGroup& other) { return other.kind == group.kind; };
      EXPECT_FALSE(no_hue && std::ranges::count_if(scene.groups, alike) > 1) << scene_caption(scene);
      ++all, of_hue += no_kind, of_kind += no_hue;
    }
    if (std::ranges::all_of(scene.groups,
                            [](const SceneGroup& g) { return g.said == SceneGroup::Said::all; }))
      EXPECT_EQ(scene_caption(scene), scene_caption(whole));
    else
      EXPECT_NE(scene_caption(scene), scene_caption(whole));
  }
  EXPECT_NEAR(static_cast<double>(of_hue + of_kind), 0.5 * static_cast<double>(all),
              0.1 * static_cast<double>(all));
  EXPECT_GT(of_hue, of_kind);  // by those that refer by hue
  EXPECT_GT(of_kind, all / 10);
}

// Nothing but the wording is new to whoever learnt from training.
TEST(SceneCaptions, HeldOutWordingsUseTheWordsOfTraining) {
  std::set<std::string> known, tested, training;
  for (std::int64_t i = 0; i < 8192; ++i) {  // as many as a vocabulary is made from
    const std::string caption = scene_caption(scene_at({}, 2, i));
    training.insert(caption);
    for (const std::string& word : words_of(caption)) known.insert(word);
    for (const std::string& word : words_of(scene_caption(scene_at(of_split("new_all"), 2, i))))
      tested.insert(word);
  }
  for (const std::string& word : tested) EXPECT_TRUE(known.contains(word)) << word;
  EXPECT_LT(known.size(), 80u);
  for (std::int64_t i = 0; i < 2000; ++i)
    EXPECT_FALSE(training.contains(scene_caption(scene_at(of_split("new_wordings"), 3, i))));
}

TEST(Scenes, AsADataSet) {
  DataConfig config{.kind = "scenes", .size = {20, 12}, .frames = 3, .fps = 10, .validation = 7};
  config.sprites.split = "new_relations";
  config.scenes.swaying = 1;
  const Split split = open_dataset(config, 4);
  EXPECT_EQ(split.training->size(), 0);
  EXPECT_EQ(split.validation->size(), 7);
  EXPECT_TRUE(split.training->classes().empty());
  EXPECT_EQ(split.training->shape(), (std::vector<std::int64_t>{3, 3, 12, 20}));
  EXPECT_EQ(split.training->name_of(17), "scenes item 17");
  const Example example = split.training->get(17, 0);
  const Scene scene = scene_at({.split = "new_relations", .swaying = 1}, 4, 17);
  EXPECT_EQ(example.caption, scene_caption(scene));
  EXPECT_EQ(bytes_of(example.picture), drawn(scene, {.width = 20, .height = 12, .frames = 3, .fps = 10}));
  EXPECT_NE(split.validation->get(0, 0).caption, "");
}

TEST(Scenes, MistakesAreNamed) {
  const auto mentions = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  mentions(error_of([] { scene_at(of_split("new_relation"), 0, 0); }), "new_relations");
  mentions(error_of([] { scene_at(of_split("new_both"), 0, 0); }), "new_wordings or new_all");
  mentions(error_of([] { sprite_clip_at({.split = "new_relations"}, 0, 0); }), "new_wordings or new_both");
  mentions(error_of([] { scene_at({.objects = 5}, 0, 0); }), "objects: expected 2 to 4, got 5");
  mentions(error_of([] { scene_at({.swaying = 1.5}, 0, 0); }), "swaying: expected 0 to 1, got 1.5");
  mentions(error_of([] { scene_at({}, 0, -1); }), "index");
  mentions(error_of([] { scene_at({}, 0, std::int64_t{1} << 44); }), "below 2^44");
  mentions(error_of([] { scene_caption(scene_at({}, 0, 0), 99); }), "wording");
  mentions(error_of([] { is_held_out_relation(0, Relation::above, 10); }), "expected 0 to 9, got 0 and 10");
  Pixels pixels(12);
  const Scene scene = scene_at({}, 0, 0);
  mentions(error_of([&] { draw_scene(scene, {.width = 2, .height = 2, .frames = 2}, pixels); }),
           "draw_scene: out: expected 24 bytes, got 12");
  mentions(error_of([] { make_scenes({.kind = "scenes", .flip = true}, 0); }), "flip");
  mentions(error_of([] { open_dataset({.kind = "scenes", .path = "x"}, 0); }),
           "expected none where kind is scenes");
  mentions(error_of([] { open_dataset({.kind = "scene"}, 0); }), "scenes");
}

}  // namespace
}  // namespace pom::data
