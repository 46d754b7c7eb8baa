// Tests of what a model for scenes is asked, and of how the answers are counted.
#include "pom/eval/scenes_eval.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <set>

#include "pom/base/error.h"
#include "pom/eval/scenes_report.h"

namespace pom::eval {
namespace {

TEST(SceneQuestions, AreOfTheirSplits) {
  const std::vector<SceneQuestion> questions = scene_questions(scene_splits(), 3, 20);
  ASSERT_EQ(questions.size(), 100u);
  std::set<std::string> captions;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const SceneQuestion& q = questions[i];
    EXPECT_EQ(q.split, static_cast<std::int64_t>(i / 20));
    EXPECT_EQ(q.number, static_cast<std::int64_t>(i % 20));
    const std::string& split = scene_splits()[static_cast<std::size_t>(q.split)];
    const bool all = split == "new_all";
    EXPECT_EQ(data::is_held_out_scene_wording(q.scene.wording), all || split == "new_wordings") << q.caption;
    for (const data::SceneGroup& group : q.scene.groups)
      EXPECT_EQ(data::is_held_out_pair(group.hue, group.kind), all || split == "new_pairs") << q.caption;
    EXPECT_EQ(q.caption, data::scene_caption(q.scene));
    captions.insert(q.caption);
  }
  EXPECT_GT(captions.size(), 95u);
}

TEST(SceneQuestions, DependOnTheSeedAndOnNothingElse) {
  const auto captions = [](const std::vector<std::string>& splits, std::uint64_t seed, std::int64_t count) {
    std::vector<std::string> texts;
    for (const SceneQuestion& q : scene_questions(splits, seed, count)) texts.push_back(q.caption);
    return texts;
  };
  const std::vector<std::string> few = captions({"new_pairs"}, 1, 5),
                                 many = captions({"training", "new_pairs"}, 1, 8);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin() + 8));
  EXPECT_NE(few, captions({"new_pairs"}, 2, 5));
  EXPECT_THROW(captions({"new_both"}, 1, 1), Error);
}

TEST(SceneQuestions, HaveAsManyObjectsAsTheyMay) {
  const auto most = [](std::int64_t objects) {
    std::size_t found = 0;
    for (const SceneQuestion& q : scene_questions(scene_splits(), 3, 40, {.objects = objects}))
      found = std::max(found, q.scene.objects.size());
    return found;
  };
  EXPECT_EQ(most(2), 2u);
  EXPECT_EQ(most(4), 4u);
}

TEST(SceneTable, NothingFoundHasNoMisfit) {
  EXPECT_TRUE(std::isnan(SceneScores().mean_misfit()));
  EXPECT_EQ((SceneScores{.found = 4, .misfits = 1}.mean_misfit()), 0.25);
}

TEST(SceneTable, AddsUp) {
  const std::vector<std::string> splits = {"training", "new_all"};
  const std::vector<SceneQuestion> questions = scene_questions(splits, 0, 4);
  const at::Tensor drawings = draw_scenes(questions, {48, 48});
  std::int64_t last = 0;
  const std::vector<SceneVerdict> verdicts = judge_scenes(drawings, [&](std::int64_t done) { last = done; });
  EXPECT_EQ(last, 8);
  SceneTable right(splits), wrong(splits);
  right.add(questions, verdicts);
  wrong.add(questions, judge_scenes(drawings.roll({1}, {0})));
  const SceneScores all = right.over_all();
  EXPECT_EQ(all.pictures, 8);
  EXPECT_EQ(all.everything, 8);
  EXPECT_EQ(all.grounds, all.grounds_asked);
  EXPECT_EQ(all.relations, all.relations_asked);
  EXPECT_EQ(all.relations_asked, std::ranges::count_if(questions, [](const SceneQuestion& question) {
              return !question.scene.relations.empty();
            }));
  EXPECT_EQ(all.blobs, 0);
  EXPECT_EQ(all.fitting, 8);
  EXPECT_EQ(right.at(0).pictures, 4);
  EXPECT_EQ(wrong.over_all().everything, 0);
  EXPECT_EQ(wrong.over_all().fitting, 8);
  right.add_readings(questions, std::vector<bool>{true, true, false, true, false, false, false, false});
  EXPECT_EQ(right.at(0).read_alike, 3);
  EXPECT_EQ(right.over_all().read_twice, 8);
  EXPECT_THROW(right.add(questions, std::vector<SceneVerdict>(2)), Error);
  EXPECT_THROW(right.add(scene_questions({"new_pairs"}, 0, 1), std::vector<SceneVerdict>(1)), Error);
}

}  // namespace
}  // namespace pom::eval
