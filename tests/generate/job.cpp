// Tests of what a request for a clip stands for: whole blocks, prompts by block, and what is refused.
#include "pom/generate/job.h"

#include <gtest/gtest.h>

#include "pom/base/error.h"
#include "pom/generate/metadata.h"

namespace pom::generate {
namespace {

ModelConfig clip_model() {
  ModelConfig config;
  config.network.kind = "vdipom";
  config.network.patch = 4;
  config.network.patch_time = 2;
  config.sample.size = {32, 16};
  config.sample.frames = 12;
  config.sample.fps = 10;
  return config;
}

Job resolved(const Request& request, const ModelConfig& config = clip_model()) {
  return resolve(request, config, {.factor = 1, .block_frames = 2});
}

TEST(Job, OpenFieldsAreTheModels) {
  const Job job = resolved({.prompt = {"a star"}});
  EXPECT_EQ(job.frames, 12);
  EXPECT_EQ(job.blocks, 6);
  EXPECT_EQ(job.fps, 10);
  EXPECT_FALSE(job.stream);
  EXPECT_EQ(job.first().width, 32);
  EXPECT_TRUE(job.remarks.empty());
}

TEST(Job, FramesFillBlocks) {
  const Job job = resolved({.prompt = {"a star"}, .frames = "5"});
  EXPECT_EQ(job.frames, 5);
  EXPECT_EQ(job.blocks, 3);
  ASSERT_EQ(job.remarks.size(), 1u);
  EXPECT_NE(job.remarks[0].find("sampling 6, trimmed to 5"), std::string::npos);
  const Job endless = resolved({.prompt = {"a star"}, .frames = "inf"});
  EXPECT_EQ(endless.frames, 0);
  EXPECT_EQ(endless.blocks, 0);
  EXPECT_TRUE(endless.stream) << "what has no end can only be streamed";
  for (const char* text : {"", "0", "-2", "2.5", "4 ", "infinite", "99999999999999999999"})
    EXPECT_THROW(resolved({.prompt = {"a star"}, .frames = text}), Error) << text;
}

TEST(Job, PromptsBelongToBlocks) {
  const Job job = resolved({.prompt = {"a"}, .prompt_at = {"9:c: d", "4:b"}});
  EXPECT_EQ(job.first().subject(), "a");
  ASSERT_EQ(job.changes.size(), 2u);
  EXPECT_EQ(job.changes[0].block, 2);
  EXPECT_EQ(job.changes[0].prompt, "b");
  EXPECT_EQ(job.changes[1].block, 4);
  EXPECT_EQ(job.changes[1].prompt, "c: d");
  EXPECT_EQ(job.remarks.size(), 1u) << "frame 9 is within a block";
  EXPECT_EQ(resolved({.prompt_at = {"1:a"}}).first().subject(), "a");
  EXPECT_TRUE(resolved({.prompt_at = {"0:a"}}).changes.empty());
  EXPECT_EQ(resolved({.prompt = {""}}).first().subject(), "");
  for (const char* text : {"", "a", ":a", "x:a", "-1:a", "12:a", "1:a"})
    EXPECT_THROW(resolved({.prompt = {"a"}, .prompt_at = {text}}), Error) << text;
  EXPECT_THROW(resolved({}), Error);
  EXPECT_THROW(resolved({.prompt_at = {"4:b"}}), Error) << "nothing for the first block";
}

TEST(Job, StreamsNeedAMaskThatLooksBack) {
  ModelConfig config = clip_model();
  config.network.temporal_mask = "none";
  EXPECT_FALSE(resolved({.prompt = {"a"}}, config).stream);
  EXPECT_THROW(resolved({.prompt = {"a"}, .stream = true}, config), Error);
  EXPECT_THROW(resolved({.prompt = {"a"}, .frames = "inf"}, config), Error);
  EXPECT_THROW(resolved({.prompt = {"a"}, .save_state = "s"}, config), Error);
}

TEST(Job, SeveralPromptsSeedsAndCounts) {
  const Job job = resolved({.prompt = {"a", "b"}, .seed = {5}, .count = 2});
  ASSERT_EQ(job.items.size(), 4u);
  EXPECT_EQ(job.items[2].subject(), "b");
  EXPECT_EQ(job.items[3].own_seed(), 8);
  EXPECT_EQ(resolved({.prompt = {"a", "b"}, .seed = {5, 1}}).items[3].own_seed(), 1);
  EXPECT_THROW(resolved({.prompt = {"a", "b"}, .frames = "inf"}), Error) << "two clips without end";
  EXPECT_THROW(resolved({.prompt = {"a"}, .count = 2, .save_state = "s"}), Error);
}

TEST(Job, ModelsWithRelativeTimesNeedALength) {
  ModelConfig config = clip_model();
  config.network.time_code = "relative";
  EXPECT_EQ(resolved({.prompt = {"a"}, .frames = "6", .stream = true}, config).blocks, 3);
  EXPECT_THROW(resolved({.prompt = {"a"}, .frames = "inf"}, config), Error);
}

TEST(Job, OneFrameIsAnImage) {
  const Job image = resolved({.prompt = {"a"}, .frames = "1"});
  EXPECT_FALSE(image.clip);
  EXPECT_EQ(image.blocks, 1);
  EXPECT_TRUE(image.remarks.empty());
  EXPECT_TRUE(resolved({.prompt = {"a"}}).clip);
}

// A complete request stands for itself.
TEST(Job, RemarksOnANegativeThatDoesNothing) {
  Request request{.prompt = {"a star"}, .negative_prompt = "a heart", .cfg_scale = 1};
  const Job job = resolved(request);
  ASSERT_EQ(job.remarks.size(), 1u);
  EXPECT_EQ(job.remarks[0], "cfg scale 1 is no guidance: the negative prompt has no effect");
  request.cfg_scale = 2;
  EXPECT_TRUE(resolved(request).remarks.empty());
  request.cfg_scale = 1, request.negative_prompt = "";
  EXPECT_TRUE(resolved(request).remarks.empty());
}

TEST(Job, CompleteRequestsResolveToThemselves) {
  const Job job =
      resolved({.prompt = {"a"}, .prompt_at = {"4:b"}, .frames = "6", .stream = true, .window = 3});
  const Job again = resolved(job.first());
  EXPECT_EQ(request_json(again.first()), request_json(job.first()));
  EXPECT_TRUE(again.stream);
  EXPECT_EQ(again.changes.size(), 1u);
  const Job begun = resolved({.prompt_at = {"0:a", "4:b"}});
  EXPECT_EQ(request_json(resolved(begun.first()).first()), request_json(begun.first()));
}

}  // namespace
}  // namespace pom::generate
