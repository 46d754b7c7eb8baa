// Questions about streams whose prompt changes: the same however many are asked, the second scene where the
// first has come to, grounds that are told apart; and scores that keep named and unnamed grounds apart.
#include "pom/eval/sprite_changes.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "pom/base/error.h"

namespace pom::eval {
namespace {

const data::ClipFormat format = {.frames = 16};

TEST(SpriteChanges, QuestionsAreTheSameHoweverManyAreAsked) {
  const ChangeQuestions few = change_questions(5, 6, {}, format), many = change_questions(5, 60, {}, format);
  ASSERT_EQ(few.before.size(), 6u);
  ASSERT_EQ(many.after.size(), 60u);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(few.before[i].caption, many.before[i].caption);
    EXPECT_EQ(few.after[i].caption, many.after[i].caption);
  }
  EXPECT_NE(few.after[0].caption, change_questions(6, 1, {}, format).after[0].caption);
}

TEST(SpriteChanges, TheSecondSceneGoesOn) {
  int unnamed = 0;
  const ChangeQuestions questions = change_questions(0, 200, {}, format);
  for (std::size_t i = 0; i < questions.after.size(); ++i) {
    const data::SpriteClip &before = questions.before[i].scene, &after = questions.after[i].scene;
    ASSERT_EQ(after.sprites.size(), 1u);
    EXPECT_EQ(after.sprites[0].radius, before.sprites[0].radius);
    EXPECT_EQ(questions.after[i].caption, data::caption_of(after));
    EXPECT_TRUE(i % 2 == 1 || after.named);
    if (after.named) continue;
    EXPECT_EQ(after.ground, before.ground);
    ++unnamed;
  }
  EXPECT_GT(unnamed, 60);
}

TEST(SpriteChanges, DrawingsHaveTheirGround) {
  const ChangeQuestions questions = change_questions(1, 100, {}, format);
  const at::Tensor clips = draw_part(questions.after, format, 40);
  std::vector<SpriteAgreement> agreements(100);
  for (SpriteAgreement& agreement : agreements) agreement.kind = agreement.hue = true;
  agreements[0].hue = false;
  ChangeScores scores;
  scores.add(questions.after, agreements, clips);
  EXPECT_EQ(scores.all().clips, 100);
  EXPECT_EQ(scores.all().kinds, 100);
  EXPECT_EQ(scores.all().kinds_and_hues, 99);
  EXPECT_EQ(scores.named.kinds_and_hues, scores.named.clips - 1);
  EXPECT_GE(scores.grounds(), 98);
  ChangeScores wrong;
  wrong.add(questions.after, agreements, 255 - clips);
  EXPECT_LT(wrong.grounds(), 30);
  EXPECT_THROW(wrong.add(questions.after, agreements, clips.narrow(0, 0, 3)), Error);
}

}  // namespace
}  // namespace pom::eval
