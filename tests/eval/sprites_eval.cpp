// Tests of what a model for clips is asked and of how the answers are counted: questions, the parts of long
// clips, Wilson's interval, and tables of scores.
#include "pom/eval/sprites_eval.h"

#include <cmath>
#include <gtest/gtest.h>
#include <set>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include "pom/base/error.h"
#include "pom/eval/sprites_report.h"

namespace pom::eval {
namespace {

TEST(SpriteQuestions, AreOfTheirSplitsAndOfOneSprite) {
  const std::vector<SpriteQuestion> questions = sprite_questions(sprite_splits(), 3, 40);
  ASSERT_EQ(questions.size(), 160u);
  std::set<std::string> captions;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const SpriteQuestion& q = questions[i];
    EXPECT_EQ(q.split, static_cast<std::int64_t>(i / 40));
    EXPECT_EQ(q.number, static_cast<std::int64_t>(i % 40));
    ASSERT_EQ(q.scene.sprites.size(), 1u);
    const data::Sprite& sprite = q.scene.sprites[0];
    const std::string& split = sprite_splits()[static_cast<std::size_t>(q.split)];
    const bool pair = split == "new_pairs" || split == "new_both",
               wording = split == "new_wordings" || split == "new_both";
    EXPECT_EQ(data::is_held_out_pair(sprite.hue, sprite.kind), pair) << q.caption;
    EXPECT_EQ(data::is_held_out_wording(q.scene.wording), wording) << q.caption;
    EXPECT_EQ(q.caption, data::caption_of(q.scene));
    captions.insert(q.caption);
  }
  EXPECT_GT(captions.size(), 140u);
}

TEST(SpriteQuestions, DependOnTheSeedAndOnNothingElse) {
  const auto captions = [](const std::vector<std::string>& splits, std::uint64_t seed, std::int64_t count) {
    std::vector<std::string> texts;
    for (const SpriteQuestion& q : sprite_questions(splits, seed, count)) texts.push_back(q.caption);
    return texts;
  };
  const std::vector<std::string> few = captions({"new_pairs"}, 1, 5),
                                 many = captions({"training", "new_pairs"}, 1, 8);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin() + 8));
  EXPECT_NE(few, captions({"new_pairs"}, 2, 5));
  EXPECT_THROW(captions({"validation"}, 1, 1), Error);
}

// Frames that hold their own numbers, in blocks that the parts do not end with.
TEST(PartKeeper, KeepsTheLastFramesOfEachLength) {
  const SpriteParts parts{5, {1, 2, 4}};
  EXPECT_EQ(parts.last(), 20);
  PartKeeper keeper(parts, 2, 8, 8);
  for (std::int64_t first = 0; first < 21; first += 3) {
    std::vector<io::Image> frames;
    for (std::int64_t i = first; i < first + 3; ++i) {
      frames.push_back(io::make_image("test", 8, 8, 3));
      std::ranges::fill(frames.back().data, static_cast<std::uint8_t>(i));
    }
    for (const std::int64_t clip : {0, 1}) keeper.take(clip, first, frames);
  }
  const std::int64_t begins[] = {0, 5, 15};
  for (std::size_t i = 0; i < 3; ++i) {
    const at::Tensor expected = at::arange(begins[i], begins[i] + 5, at::kByte).view({1, 1, 5, 1, 1});
    EXPECT_TRUE(at::equal(keeper.part(i), expected.expand({2, 3, 5, 8, 8}).contiguous()));
  }
}

TEST(PartKeeper, RefusesLengthsThatMakeNoSense) {
  EXPECT_THROW(PartKeeper({5, {0}}, 1, 8, 8), Error);
  EXPECT_THROW(PartKeeper({5, {2, 2}}, 1, 8, 8), Error);
  EXPECT_THROW(PartKeeper({1, {1}}, 1, 8, 8), Error);
}

TEST(JudgePart, DrawingsAgreeWithTheirOwnQuestionsOnly) {
  const std::vector<SpriteQuestion> questions = sprite_questions({"training"}, 0, 40);
  const data::ClipFormat format;
  const std::int64_t later = 9 * format.frames;
  for (const std::int64_t first : {std::int64_t{0}, later}) {
    const at::Tensor drawn = draw_part(questions, format, first);
    SpriteScores right, wrong;
    std::int64_t last = 0;
    for (const SpriteAgreement& agreement :
         judge_part(questions, drawn, format.fps, [&](std::int64_t done) { last = done; }))
      right.add(agreement);
    for (const SpriteAgreement& agreement : judge_part(questions, drawn.roll({1}, {0}), format.fps))
      wrong.add(agreement);
    EXPECT_EQ(last, 40);
    EXPECT_GE(right.kinds, 39);
    EXPECT_GE(right.hues, 39);
    EXPECT_GE(right.directions, 38);
    EXPECT_LT(wrong.kinds, 16);
    EXPECT_LT(wrong.hues, 16);
    EXPECT_LT(wrong.directions, 20);
  }
  EXPECT_THROW(judge_part(questions, draw_part(questions, format, 0).narrow(0, 0, 2), 8), Error);
}

// Its ends are the rates of which the one that was seen is just 1.96 deviations away.
TEST(Wilson, EndsAreAsFarAsTheyShouldBe) {
  for (const auto& [hits, trials] : {std::pair{7, 10}, {450, 500}, {1, 1000}, {499, 500}}) {
    const double rate = static_cast<double>(hits) / trials;
    const Interval interval = wilson_interval(hits, trials);
    EXPECT_LT(interval.low, rate);
    EXPECT_GT(interval.high, rate);
    for (const double end : {interval.low, interval.high})
      EXPECT_NEAR(std::abs(rate - end) / std::sqrt(end * (1 - end) / trials), 1.959964, 1e-5);
  }
}

TEST(Wilson, KnownValuesAndEdges) {
  EXPECT_NEAR(wilson_interval(450, 500).low, 0.8705, 1e-4);
  EXPECT_NEAR(wilson_interval(450, 500).high, 0.9233, 1e-4);
  const Interval none = wilson_interval(0, 10), all = wilson_interval(10, 10),
                 nothing = wilson_interval(0, 0);
  EXPECT_EQ(none.low, 0);
  EXPECT_NEAR(none.high, 0.2775, 1e-4);
  EXPECT_NEAR(all.low, 0.7225, 1e-4);
  EXPECT_EQ(all.high, 1);
  EXPECT_EQ(nothing.low, 0);
  EXPECT_EQ(nothing.high, 1);
  EXPECT_THROW(wilson_interval(3, 2), Error);
  EXPECT_THROW(wilson_interval(-1, 2), Error);
}

TEST(ScoreTable, AddsUp) {
  const std::vector<std::string> splits = {"training", "new_both"};
  const std::vector<SpriteQuestion> questions = sprite_questions(splits, 0, 2);
  ScoreTable table(splits, {1, 10});
  table.add(
      0, questions,
      std::vector<SpriteAgreement>{{true, true, true, true, 0.01}, {true, false, false, true, 0.02}, {}, {}});
  table.add(1, questions, std::vector<SpriteAgreement>{{}, {}, {}, {false, true, true, true, 0.5}});
  EXPECT_EQ(table.at(0, 0).clips, 2);
  EXPECT_EQ(table.at(0, 0).kinds, 2);
  EXPECT_EQ(table.at(0, 0).hues, 1);
  EXPECT_EQ(table.at(1, 0).kinds, 0);
  EXPECT_EQ(table.at(1, 1).hues, 1);
  EXPECT_EQ(table.over_lengths(0).clips, 4);
  EXPECT_EQ(table.over_lengths(0).directions, 1);
  EXPECT_EQ(table.over_splits(1).clips, 4);
  EXPECT_EQ(table.over_splits(1).directions, 1);
  EXPECT_EQ(table.over_all().clips, 8);
  EXPECT_EQ(table.over_all().hues, 2);
  EXPECT_EQ(table.over_all().found, 3);
  EXPECT_EQ(table.over_all().fitting, 2);
  EXPECT_DOUBLE_EQ(table.over_lengths(0).mean_misfit(), 0.015);
  EXPECT_DOUBLE_EQ(table.over_all().worst_misfit, 0.5);
  EXPECT_THROW(table.add(2, questions, std::vector<SpriteAgreement>(4)), Error);
  EXPECT_THROW(table.add(0, questions, std::vector<SpriteAgreement>(3)), Error);
  EXPECT_THROW(table.add(0, sprite_questions({"new_pairs"}, 0, 1), std::vector<SpriteAgreement>(1)), Error);
}

}  // namespace
}  // namespace pom::eval
