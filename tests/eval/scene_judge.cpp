// Tests of the judge of scenes: it says that drawings are right, of every split and at several sizes, also
// where they are noisy; it notices each kind of mistake; and what fits nothing is not taken for a shape.
#include "pom/eval/scene_judge.h"

#include "tests/eval/wrong_scenes.h"
#include <cmath>
#include <gtest/gtest.h>

#include <ATen/ops/full.h>

#include "pom/base/error.h"
#include "pom/eval/scenes_eval.h"

namespace pom::eval {
namespace {

constexpr std::uint64_t seed = 0x7465'7374;  // neither of a report nor of the bounds

std::vector<SceneQuestion> asked(const std::string& split, std::int64_t count) {
  return scene_questions({split}, seed, count);
}

at::Tensor noisy(const at::Tensor& picture, double noise) {
  at::Tensor out = picture.clone();
  auto* bytes = out.data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < out.numel(); ++i)
    bytes[i] = static_cast<std::uint8_t>(
        std::clamp(bytes[i] + 255 * noise * normal_at({seed, noise_for::test, 0}, i), 0.0, 255.0));
  return out;
}

int right_of(const std::vector<SceneQuestion>& questions, std::int64_t side, double noise = 0) {
  int right = 0;
  for (const SceneQuestion& q : questions) {
    const at::Tensor picture = drawn_scene(q.scene, side);
    right += compare(q.scene, judge_scene(noise > 0 ? noisy(picture, noise) : picture)).everything() ? 1 : 0;
  }
  return right;
}

TEST(SceneJudge, IsRightOnDrawings) {
  for (const std::string& split : scene_splits()) EXPECT_GE(right_of(asked(split, 24), 64), 23) << split;
}

TEST(SceneJudge, IsRightAtOtherSizes) {
  EXPECT_GE(right_of(asked("new_all", 30), 32), 28);
  EXPECT_GE(right_of(asked("new_all", 4), 128), 4);
}

TEST(SceneJudge, PutsUpWithNoise) {
  EXPECT_GE(right_of(asked("training", 20), 64, 0.03), 19);
}

// A judge that says yes to everything would pass the tests above.
TEST(SceneJudge, NoticesMistakes) {
  const std::vector<SceneQuestion> questions = asked("training", 16);
  for (const Mistake& mistake : mistakes()) {
    int cases = 0, noticed = 0;
    for (std::size_t i = 0; i < questions.size(); ++i) {
      data::Scene wrong = questions[i].scene;
      Chance chance(seed + i);
      if (mistake.of_scene && !mistake.of_scene(wrong, chance)) continue;
      const at::Tensor picture = mistake.of_picture ? mistake.of_picture(wrong, 64) : drawn_scene(wrong, 64);
      ++cases;
      noticed += compare(questions[i].scene, judge_scene(picture)).everything() ? 0 : 1;
    }
    EXPECT_GE(cases, 3) << mistake.name;
    EXPECT_GE(noticed, static_cast<int>(std::floor(0.95 * cases))) << mistake.name << ", of " << cases;
  }
}

// And says which one it is.
TEST(SceneJudge, NamesMistakes) {
  const auto agreement_of = [](bool (*change)(data::Scene&, Chance&), const data::Scene& scene) {
    data::Scene wrong = scene;
    Chance chance(seed);
    return change(wrong, chance) ? std::optional(compare(scene, judge_scene(drawn_scene(wrong, 64))))
                                 : std::nullopt;
  };
  int cases = 0;
  for (const SceneQuestion& q : asked("training", 8)) {
    const auto another = agreement_of(swap_hue, q.scene), exchanged = agreement_of(exchange_hues, q.scene),
               moved = agreement_of(swap_relation, q.scene), fewer = agreement_of(drop_object, q.scene),
               more = agreement_of(add_object, q.scene);
    EXPECT_TRUE(another->objects && another->count && another->fits && !another->colours) << q.caption;
    EXPECT_TRUE(!another->pairs && !fewer->objects && !fewer->colours && !fewer->count) << q.caption;
    EXPECT_TRUE(!exchanged || (exchanged->objects && exchanged->count && !exchanged->pairs)) << q.caption;
    EXPECT_TRUE(!moved || !moved->relations) << q.caption;
    EXPECT_TRUE(!more || (more->pairs && !more->count)) << q.caption;
    cases += moved && exchanged && more ? 1 : 0;
  }
  EXPECT_GE(cases, 2);
}

TEST(SceneJudge, FindsWhereThingsAre) {
  for (const SceneQuestion& q : asked("training", 12)) {
    const SceneVerdict verdict = judge_scene(drawn_scene(q.scene, 64));
    ASSERT_EQ(verdict.objects.size(), q.scene.objects.size()) << q.caption;
    for (const data::SceneObject& object : q.scene.objects) {
      const bool there = std::ranges::any_of(verdict.objects, [&](const FoundObject& found) {
        return found.kind == object.kind && found.hue == object.hue &&
               std::hypot(found.x - object.x, found.y - object.y) < 0.01 &&
               std::abs(found.radius - object.radius) < 0.01;
      });
      EXPECT_TRUE(there) << q.caption;
    }
  }
}

// The judge names the nearest shape even here, and that must not count.
TEST(SceneJudge, WhatFitsNothingIsSaidSo) {
  at::Tensor bar = at::full({3, 64, 64}, 30, at::kByte), corner = bar.clone(), frame = bar.clone();
  bar[0].narrow(1, 20, 8).fill_(230);
  corner[0].narrow(0, 16, 6).narrow(1, 10, 30).fill_(230);
  corner[0].narrow(0, 16, 30).narrow(1, 10, 6).fill_(230);
  frame[0].narrow(0, 10, 30).narrow(1, 10, 30).fill_(230);
  frame[0].narrow(0, 14, 22).narrow(1, 14, 22).fill_(30);
  for (const at::Tensor& picture : {bar, corner, frame}) {
    const SceneVerdict verdict = judge_scene(picture);
    ASSERT_FALSE(verdict.objects.empty());
    EXPECT_FALSE(verdict.fits()) << verdict.objects[0].misfit << " " << verdict.residue;
  }
  // A colour that is no hue is no object, and yet there.
  at::Tensor brown = at::full({3, 64, 64}, 20, at::kByte);
  brown[0].narrow(0, 10, 20).narrow(1, 10, 20).fill_(150);
  brown[1].narrow(0, 10, 20).narrow(1, 10, 20).fill_(130);
  EXPECT_FALSE(judge_scene(brown).fits());
}

TEST(SceneJudge, SeesNothingWhereNothingIs) {
  data::Scene scene = asked("training", 1)[0].scene;
  EXPECT_TRUE(judge_scene(at::full({3, 64, 64}, 80, at::kByte)).objects.empty());
  const data::Scene whole = scene;
  scene.objects.clear();
  const SceneVerdict verdict = judge_scene(drawn_scene(scene, 64));
  EXPECT_TRUE(verdict.objects.empty() && verdict.fits());
  const SceneAgreement agreement = compare(whole, verdict);
  EXPECT_FALSE(agreement.objects || agreement.colours || agreement.pairs || agreement.count);
}

TEST(SceneJudge, RelationsHoldBetweenCentres) {
  SceneVerdict verdict;
  verdict.objects = {{.x = 0.1, .y = 0.3}, {.x = 0, .y = 0}};
  verdict.overlaps = {{0, 1, 0.2}};
  using enum data::Relation;
  EXPECT_TRUE(holds(above, verdict, 0, 1) && holds(below, verdict, 1, 0));
  EXPECT_FALSE(holds(above, verdict, 1, 0) || holds(right_of, verdict, 0, 1) ||
               holds(left_of, verdict, 0, 1));
  EXPECT_TRUE(holds(in_front_of, verdict, 0, 1) && holds(behind, verdict, 1, 0));
  EXPECT_FALSE(holds(in_front_of, verdict, 1, 0));
  verdict.objects[0].x = 0.4;
  EXPECT_TRUE(holds(right_of, verdict, 0, 1) && holds(left_of, verdict, 1, 0));
  verdict.overlaps.clear();
  EXPECT_FALSE(holds(in_front_of, verdict, 0, 1));
}

TEST(SceneJudge, MistakesAreNamed) {
  for (const at::Tensor& bad : {at::full({1, 3, 64, 64}, 0, at::kByte), at::full({3, 64, 64}, 0, at::kFloat),
                                at::full({3, 8, 64}, 0, at::kByte)})
    EXPECT_THROW(judge_scene(bad), Error);
}

}  // namespace
}  // namespace pom::eval
